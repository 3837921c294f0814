#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <sys/wait.h>

#include "api/render/openapi.h"
#include "api/routes/handlers.h"
#include "api/routes/route_call.h"
#include "api/routes/routes.h"
#include "tests/support/temp_dir.h"

static char lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

static void every_row_of_the_route_table_appears(void **state) {
    (void)state;
    gs_json *document = gs_openapi_document(gs_routes, gs_num_routes);
    const gs_json *paths = gs_json_get(document, "paths");
    for (size_t i = 0; i < gs_num_routes; i++) {
        char verb[16] = "";
        for (size_t j = 0; gs_routes[i].verb[j]; j++) verb[j] = lower(gs_routes[i].verb[j]);
        const gs_json *operation = gs_json_get(gs_json_get(paths, gs_routes[i].path), verb);
        assert_string_equal(gs_json_string_or(operation, "operationId", ""),
                            gs_routes[i].operation);
        char code[8];
        snprintf(code, sizeof code, "%d", gs_routes[i].success);
        assert_non_null(gs_json_get(gs_json_get(operation, "responses"), code));
        for (const gs_query_param *param = gs_routes[i].query; param && param->name; param++) {
            bool found = false;
            const gs_json *parameters = gs_json_get(operation, "parameters");
            for (size_t k = 0; k < gs_json_count(parameters); k++)
                found |= strcmp(gs_json_string_or(gs_json_at(parameters, k), "name", ""),
                                param->name) == 0;
            assert_true(found);
        }
    }
    gs_json_release(document);
}

// The server takes "?verbose" for true, so that the document has to.
static void a_flag_may_be_without_a_value(void **state) {
    (void)state;
    gs_json *document = gs_openapi_document(gs_routes, gs_num_routes);
    const gs_json *operation = gs_json_get(gs_json_get(gs_json_get(document, "paths"), "/readyz"), "get");
    const gs_json *parameter = gs_json_at(gs_json_get(operation, "parameters"), 0);
    assert_string_equal(gs_json_string_or(parameter, "name", ""), "verbose");
    char *text = NULL;
    assert_int_equal(gs_json_encode(&text, NULL, gs_json_get(parameter, "schema"), false).code, GS_OK);
    assert_string_equal(text, "{\"enum\":[true,false,\"\"]}");
    free(text);
    gs_json_release(document);
}

static void job_fields_are_described(void **state) {
    (void)state;
    gs_json *document = gs_openapi_document(gs_routes, gs_num_routes);
    const gs_json *schemas = gs_json_get(gs_json_get(document, "components"), "schemas");
    const gs_json *job = gs_json_get(gs_json_get(schemas, "CreateJobRequest"), "properties");
    assert_non_null(
        gs_json_get(gs_json_get(gs_json_get(job, "reducer"), "properties"), "bucket_cap_bytes"));
    gs_json_release(document);
}

static void operations_have_names_of_their_own(void **state) {
    (void)state;
    for (size_t i = 0; i < gs_num_routes; i++)
        for (size_t j = 0; j < i; j++)
            assert_string_not_equal(gs_routes[i].operation, gs_routes[j].operation);
}

// Whoever asks, and however often: the same bytes in the same place, and no work.
static void it_is_made_once_and_answered_without_a_copy(void **state) {
    (void)state;
    gs_api_services services = {.routes = gs_routes, .num_routes = gs_num_routes};
    assert_int_equal(gs_shared_document_make(&services.openapi, gs_openapi_document(gs_routes, gs_num_routes)).code, GS_OK);
    gs_route_match match;
    gs_route_find(&match, gs_routes, gs_num_routes, "GET", "/openapi.json");
    assert_non_null(match.route);
    for (int i = 0; i < 2; i++) {
        gs_http_request request = {.method = "GET", .path = "/openapi.json"};
        gs_http_response response = {0};
        gs_route_call call = {.services = &services, .request = &request, .response = &response, .match = &match};
        gs_handle_openapi(&call);
        assert_int_equal(response.status, 200);
        assert_ptr_equal(response.shared, services.openapi.text);
        assert_int_equal(response.shared_bytes, services.openapi.bytes);
        assert_int_equal(response.body.len, 0);
        assert_string_equal(gs_http_response_header(&response, "ETag"), services.openapi.tag);
        assert_string_equal(gs_http_response_header(&response, "Content-Type"), "application/json");
        assert_string_equal(gs_http_response_header(&response, "Cache-Control"), "no-cache");
    }
    gs_json *parsed = NULL;
    assert_int_equal(services.openapi.text[services.openapi.bytes - 1], '\n');
    assert_int_equal(gs_json_parse(&parsed, services.openapi.text, services.openapi.bytes).code, GS_OK);
    assert_string_equal(gs_json_string_or(parsed, "openapi", ""), "3.1.0");
    gs_json_release(parsed);
    gs_shared_document_release(&services.openapi);
}

// Each schema in the document is a JSON Schema, says another implementation.
static void schemas_are_json_schemas(void **state) {
    (void)state;
    if (system("python3 -c 'import jsonschema' >/dev/null 2>&1") != 0) skip();
    char *dir = gs_temp_dir_make(), path[4096], command[8192], *text = NULL;
    snprintf(path, sizeof path, "%s/openapi.json", dir);
    gs_json *document = gs_openapi_document(gs_routes, gs_num_routes);
    assert_int_equal(gs_json_encode(&text, NULL, document, false).code, GS_OK);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    fputs(text, file);
    fclose(file);
    free(text);
    gs_json_release(document);
    snprintf(command, sizeof command, "python3 %s/tests/unit/api/check_openapi.py %s",
             GRADSYNC_SOURCE_DIR, path);
    int status = system(command);
    gs_temp_dir_remove(dir);
    assert_int_equal(WEXITSTATUS(status), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_of_the_route_table_appears),
        cmocka_unit_test(a_flag_may_be_without_a_value),
        cmocka_unit_test(job_fields_are_described),
        cmocka_unit_test(operations_have_names_of_their_own),
        cmocka_unit_test(it_is_made_once_and_answered_without_a_copy),
        cmocka_unit_test(schemas_are_json_schemas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
