// Whatever lies in a directory that others write into as well: a sealed file is what was sealed, one with another byte is damaged, and
// whoever looks for a fence, a sign of life or a mark there reads what it says, or nothing. The input: which bit of the file is another
// one (two bytes, little endian), then what is sealed; not an object: it lies there as it is.
#include <stdlib.h>
#include <string.h>

#include "rpc/checkpoint/fence.h"
#include "rpc/checkpoint/life_sign.h"
#include "rpc/checkpoint/place_mark.h"
#include "rpc/json/sealed_json.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/one_file.h"

static const char *const names[] = {"FENCE.json", "ALIVE.json", "PLACE-c.json"};
static const gs_fence mine = {"c", 7};

static void require(bool holds) {
    if (!holds) abort();
}

static void lay(const char *text, size_t bytes) {
    for (size_t i = 0; i < 3; i++) fuzz_write(names[i], text, bytes);
}

// Of what was sealed.
static void read_whole(const gs_json *said) {
    const gs_fence told = gs_fence_of(said);
    int64_t number, named = gs_json_int_or(said, "generation", 0);
    require(told.generation == (named > 0 && named <= UINT32_MAX ? named : 0));
    uint64_t life, told_life;
    uint32_t generation;
    bool stands, is_above;
    require(!gs_life_sign_read(&number, fuzz_dir(), &mine).code);
    require(number == (gs_fence_is(&told, &mine) ? gs_json_int_or(said, "number", 0) : 0));
    bool has_life = !gs_json_read_u64(&told_life, said, "life").code;
    require(has_life == !gs_place_mark_read(&life, fuzz_dir(), "c").code && (!has_life || life == told_life));
    require(!gs_fence_stands(&stands, fuzz_dir(), &mine).code && (!stands || gs_fence_is(&told, &mine)));
    require(!gs_fence_last(&generation, fuzz_dir(), "c").code);
    // One that closes it names a generation that nobody may have had.
    require(!generation || (generation == told.generation - gs_json_bool_or(said, "closed", false) && strcmp(told.cluster, "c") == 0));
    require(!gs_fence_is_above(&is_above, fuzz_dir(), &mine).code && (!is_above || told.generation > mine.generation));
    // Whoever may write there raised it, or comes behind who did, or there is none that is known.
    bool passes = gs_fence_check(fuzz_dir(), &mine).code == GS_OK;
    require(passes == (!told.generation || (strcmp(told.cluster, "c") == 0 && told.generation <= mine.generation)));
}

// Nobody takes what is damaged for somebody's word.
static void read_damaged(void) {
    int64_t number;
    uint64_t life;
    bool stands;
    require(gs_fence_check(fuzz_dir(), &mine).code != GS_OK || gs_fence_stands(&stands, fuzz_dir(), &mine).code || !stands);
    require(!gs_life_sign_read(&number, fuzz_dir(), &mine).code && number == 0);
    require(gs_place_mark_read(&life, fuzz_dir(), "c").code == GS_DATA_LOSS);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    gs_json *said = NULL, *read = NULL;
    char *text = NULL, *plain = NULL, *again = NULL;
    if (bytes < 2) return 0;
    bool is_object = !gs_json_parse(&said, (const char *)data + 2, bytes - 2).code && gs_json_type_of(said) == GS_JSON_OBJECT &&
                     gs_json_count(said) > 0 && !gs_json_get(said, "digest");
    if (!is_object) {
        gs_json_release(said);
        lay((const char *)data + 2, bytes - 2);
        if (gs_sealed_json_parse(&read, (const char *)data + 2, bytes - 2).code) read_damaged();
        gs_json_release(read);
        return 0;
    }
    require(!gs_json_encode(&plain, NULL, said, false).code && !gs_sealed_json_text(&text, gs_json_copy(said)).code);
    size_t text_bytes = strlen(text);
    require(!gs_sealed_json_parse(&read, text, text_bytes).code);
    lay(text, text_bytes);
    read_whole(said);
    gs_json_remove(read, "digest");
    require(!gs_json_encode(&again, NULL, read, false).code && strcmp(again, plain) == 0);
    gs_json_release(read);
    size_t bit = (size_t)(data[0] | data[1] << 8) % (8 * text_bytes);
    for (size_t i = text_bytes; i-- > 0;) {  // in each byte of the end, which no digest is of, and in that one
        if (i + 64 < text_bytes && i != bit / 8) continue;
        text[i] = (char)(text[i] ^ 1 << bit % 8);
        require(gs_sealed_json_parse(&read, text, text_bytes).code == GS_DATA_LOSS);
        text[i] = (char)(text[i] ^ 1 << bit % 8);
    }
    text[bit / 8] = (char)(text[bit / 8] ^ 1 << bit % 8);
    lay(text, text_bytes);
    read_damaged();
    gs_json_release(said);
    free(plain);
    free(again);
    free(text);
    return 0;
}

static void __attribute__((destructor)) remove_files(void) {
    for (size_t i = 0; i < 3; i++) fuzz_remove(names[i]);
}
