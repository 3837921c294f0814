// gradsync: the command line. The first word is the command; flags may stand before or behind it.
#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/command.h"
#include "core/config.h"

const char *argp_program_version = "gradsync " GRADSYNC_VERSION;

// Keys are the letters of gs_cli_command.flags; above 255 they have no short form.
enum {
    KEY_SERVER = 256,
    KEY_CONTEXT,
    KEY_TOKEN_FILE,
    KEY_CACERT,
    KEY_ROLE,
    KEY_EXPIRES,
    KEY_TIMEOUT,
    KEY_DEBUG,
    KEY_SET,
    KEY_WAIT,
    KEY_DRY_RUN,
    KEY_NOW,
    KEY_ALL,
    KEY_STATE,
    KEY_LABEL,
    KEY_RANK,
    KEY_TAIL,
    KEY_LEVEL,
    KEY_GREP,
    KEY_SERIES,
    KEY_STEPS,
    KEY_STEP,
    KEY_PURGE,
    KEY_MODEL,
    KEY_WORKERS,
    KEY_SLOTS,
    KEY_DATA_ROOT,
    KEY_DATA_DIR,
    KEY_HTTP,
    KEY_HOSTS,
    KEY_FORCE,
    KEY_POOL,
    KEY_OUT
};

static const struct {
    char letter;
    struct argp_option option;
} flags[] = {
    {'s', {"set", KEY_SET, "MEMBER=VALUE", 0, "change a member of the job: steps.target=500", 0}},
    {'W', {"wait", KEY_WAIT, NULL, 0, "follow the job; the exit code is its result", 0}},
    {'D', {"dry-run", KEY_DRY_RUN, NULL, 0, "only validate; prints the full job", 0}},
    {'N', {"now", KEY_NOW, NULL, 0, "end the ranks at once, without saving", 0}},
    {'P', {"purge", KEY_PURGE, NULL, 0, "delete checkpoints and logs too", 0}},
    {'m', {"model", KEY_MODEL, NULL, 0, "export: without the optimizer's state", 0}},
    {'a', {"all", KEY_ALL, NULL, 0, "also jobs that have ended", 0}},
    {'S', {"state", KEY_STATE, "STATES", 0, "only these states, separated by commas", 0}},
    {'l', {"label", KEY_LABEL, "KEY:VALUE", 0, "only jobs with this label", 0}},
    {'f', {"follow", 'f', NULL, 0, "stay until the job has ended", 0}},
    {'R', {"rank", KEY_RANK, "RANKS", 0, "all, or numbers separated by commas", 0}},
    {'t', {"tail", KEY_TAIL, "LINES", 0, "begin with the last so many lines", 0}},
    {'L', {"level", KEY_LEVEL, "LEVEL", 0, "this level and above", 0}},
    {'g', {"grep", KEY_GREP, "TEXT", 0, "only lines that contain TEXT", 0}},
    {'e', {"series", KEY_SERIES, "NAMES", 0, "history of these values by step", 0}},
    {'p', {"steps", KEY_STEPS, "STEPS", 0, "last:N, FROM-TO or one step (default last:3)", 0}},
    {'q', {"step", KEY_STEP, "N", 0, "go on from the checkpoint of this step; later ones are removed", 0}},
    {'n', {"workers", KEY_WORKERS, "N", 0, "worker agents to start (default 1)", 0}},
    {'k', {"slots", KEY_SLOTS, "K", 0, "slots of each worker (default 1)", 0}},
    {'r',
     {"data-root", KEY_DATA_ROOT, "DIR", 0, "what data patterns are relative to (default .)", 0}},
    {'d',
     {"data-dir", KEY_DATA_DIR, "DIR", 0,
      "where the coordinator stores (default ~/.local/state/gradsync)", 0}},
    {'w', {"hosts", KEY_HOSTS, "WORKERS", 0, "only these workers, separated by commas", 0}},
    {'F', {"force", KEY_FORCE, NULL, 0, "although jobs train, which are slower meanwhile; although the token crosses the network unencrypted", 0}},
    {'x', {"pool", KEY_POOL, NULL, 0, "for many workers, whose names begin with NAME-", 0}},
    {'u', {"out", KEY_OUT, "FILE", 0, "a new file for what is made, which nobody else may read (default: standard output)", 0}},
    {'A', {"role", KEY_ROLE, "ROLE", 0, "metrics, viewer, operator or admin", 0}},
    {'E', {"expires", KEY_EXPIRES, "TIME", 0, "how long it counts: 90d, 12h, 30m, 60s (default: until revoked)", 0}},
    {'H', {"http", KEY_HTTP, "ADDR:PORT", 0, "where to serve (default 127.0.0.1:8470)", 0}},
};

static const struct argp_option common_options[] = {
    {"server", KEY_SERVER, "URL", 0,
     "the coordinator (default GRADSYNC_SERVER, else where `gradsync login` was last, else http://127.0.0.1:8470)", 1},
    {"context", KEY_CONTEXT, "NAME", 0, "a server and its token, as `gradsync login` kept them", 1},
    {"token-file", KEY_TOKEN_FILE, "FILE", 0,
     "a file with the token (default GRADSYNC_TOKEN, else GRADSYNC_TOKEN_FILE, else what login kept)", 1},
    {"cacert", KEY_CACERT, "FILE", 0, "the authority of the server's certificate (default GRADSYNC_CACERT, else the system's)", 1},
    {"timeout", KEY_TIMEOUT, "SECONDS", 0, "how long a server that is away is tried (default 10)",
     1},
    {"output", 'o', "FORMAT", 0, "table, json or name", 1},
    {"debug", KEY_DEBUG, NULL, 0, "show the HTTP exchange", 1}};

#define NUM_COMMON_OPTIONS (sizeof common_options / sizeof *common_options)
#define MAX_OPTIONS (sizeof flags / sizeof *flags + NUM_COMMON_OPTIONS)

static bool set_text_option(gs_cli_options *options, int key, const char *value) {
    const struct {
        int key;
        const char **member;
    } texts[] = {{KEY_SERVER, &options->server},     {KEY_CONTEXT, &options->context},
                 {KEY_TOKEN_FILE, &options->token_file}, {KEY_CACERT, &options->cacert},
                 {KEY_ROLE, &options->role},         {KEY_EXPIRES, &options->expires},
                 {KEY_STATE, &options->state},
                 {KEY_LABEL, &options->label},       {KEY_RANK, &options->rank},
                 {KEY_TAIL, &options->tail},         {KEY_LEVEL, &options->level},
                 {KEY_GREP, &options->grep},         {KEY_SERIES, &options->series},
                 {KEY_STEPS, &options->steps},       {KEY_STEP, &options->step},
                       {KEY_WORKERS, &options->workers},
                 {KEY_SLOTS, &options->slots},       {KEY_DATA_ROOT, &options->data_root},
                 {KEY_DATA_DIR, &options->data_dir}, {KEY_HTTP, &options->http},
                 {KEY_HOSTS, &options->hosts},       {KEY_OUT, &options->file}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].key != key) continue;
        *texts[i].member = value;
        return true;
    }
    return false;
}

static bool set_switch(gs_cli_options *options, int key) {
    const struct {
        int key;
        bool *member;
    } switches[] = {{KEY_WAIT, &options->wait},       {KEY_NOW, &options->now},
                    {KEY_DRY_RUN, &options->dry_run}, {KEY_ALL, &options->all},
                    {KEY_PURGE, &options->purge},     {KEY_DEBUG, &options->debug},
                    {KEY_MODEL, &options->model_alone}, {KEY_FORCE, &options->force},
                    {KEY_POOL, &options->pool},
                    {'f', &options->follow}};
    for (size_t i = 0; i < sizeof switches / sizeof *switches; i++) {
        if (switches[i].key != key) continue;
        *switches[i].member = true;
        return true;
    }
    return false;
}

static error_t take_option(int key, char *value, struct argp_state *state) {
    gs_cli_options *options = state->input;
    if (key == ARGP_KEY_ARG) {
        if (options->num_args == GS_CLI_MAX_ARGS)
            argp_error(state, "too many arguments");
        else
            options->args[options->num_args++] = value;
        return 0;
    }
    if (set_text_option(options, key, value) || set_switch(options, key)) return 0;
    if (key == KEY_SET) {
        if (options->num_sets == GS_CLI_MAX_SETS)
            argp_error(state, "more than %d --set", GS_CLI_MAX_SETS);
        else
            options->sets[options->num_sets++] = value;
        return 0;
    }
    if (key == KEY_TIMEOUT) {
        char *end;
        options->timeout_seconds = strtod(value, &end);
        if (end == value || *end || !(options->timeout_seconds >= 0) ||
            options->timeout_seconds > 86400)
            argp_error(state, "--timeout: '%s' is not a number of seconds", value);
        return 0;
    }
    if (key == 'o') {
        // A command that writes files says so below; formats have no point and no slash.
        if (gs_cli_format_from_name(&options->format, value)) return 0;
        if (strpbrk(value, "./"))
            options->file = value;
        else
            argp_error(state, "--output: '%s' is not table, json or name", value);
        return 0;
    }
    return ARGP_ERR_UNKNOWN;
}

static const gs_cli_command *find_command(const char *name) {
    for (int i = 0; i < gs_cli_num_commands; i++) {
        const gs_cli_command *command = &gs_cli_commands[i];
        if (strcmp(command->name, name) == 0 ||
            (command->alias && strcmp(command->alias, name) == 0))
            return command;
    }
    return NULL;
}

static void print_commands(FILE *out) {
    fprintf(out, "Usage: gradsync [--server URL] COMMAND [ARGUMENT...]\n\n"
                 "Launches, watches and stops distributed training jobs.\n\n");
    for (int i = 0; i < gs_cli_num_commands; i++)
        fprintf(out, "  %-12s %s\n", gs_cli_commands[i].name, gs_cli_commands[i].summary);
    fprintf(out,
            "\nBegin with:\n"
            "  gradsync up --workers 2                              # in one terminal\n"
            "  echo '{\"model\":{\"kind\":\"mlp\"},\"steps\":{\"target\":200}}' | gradsync submit "
            "- --wait\n\n"
            "`gradsync COMMAND --help` shows flags and examples of a command.\n"
            "Exit codes: 0 done, 1 job failed, 2 usage, 3 not found, 4 conflict, 5 not allowed,\n"
            "6 server away, 7 not valid, 8 timed out, 9 job cancelled, 130 interrupted.\n");
}

static int refuse_command(const char *name) {
    const char *names[64];
    size_t num_names = 0;
    for (int i = 0; i < gs_cli_num_commands && i < 64; i++)
        names[num_names++] = gs_cli_commands[i].name;
    const char *nearest = gs_nearest_word(name, names, num_names);
    fprintf(stderr, "gradsync: unknown command '%s'", name);
    if (nearest) fprintf(stderr, "; did you mean '%s'?", nearest);
    fprintf(stderr, "\n  `gradsync --help` lists the commands\n");
    return GS_EXIT_USAGE;
}

// The options whose letters are given and the common ones; NULL: all. Returns how many.
static size_t gather_options(struct argp_option table[MAX_OPTIONS + 1], const char *letters) {
    size_t num_options = 0;
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++)
        if (!letters || strchr(letters, flags[i].letter)) table[num_options++] = flags[i].option;
    for (size_t i = 0; i < NUM_COMMON_OPTIONS; i++) table[num_options++] = common_options[i];
    table[num_options] = (struct argp_option){0};
    return num_options;
}

static int refuse_flag(const char *program, const char *word, const char *const *names,
                       size_t num_names) {
    const char *name = word + strspn(word, "-");
    int len = (int)strcspn(name, "=");
    char text[64];
    snprintf(text, sizeof text, "%.*s", len < 60 ? len : 60, name);
    const char *nearest = gs_nearest_word(text, names, num_names);
    fprintf(stderr, "%s: unknown flag %.*s%s", program, (int)(name - word), word, text);
    if (nearest) fprintf(stderr, "; did you mean --%s?", nearest);
    fprintf(stderr, "\n  `%s --help` lists the flags\n", program);
    return 0;
}

// The words that the flag `word` takes up, 1 or with its value 2. 0: `table` does not know it, and
// the user has been told; argp would not say which one is near. It takes the beginning of a name
// for the name, and so do we.
static int count_flag_words(const char *program, const struct argp_option *table,
                            size_t num_options, const char *word) {
    const char *names[MAX_OPTIONS + 3] = {"help", "usage", "version"};
    size_t num_names = 3;
    for (size_t i = 0; i < num_options; i++) names[num_names++] = table[i].name;
    bool is_long = word[1] == '-';
    size_t len = is_long ? strcspn(word + 2, "=") : 1;
    if (is_long && len == 0) return 1;
    for (size_t i = 0; i < num_names; i++) {
        const struct argp_option *option = i < 3 ? NULL : &table[i - 3];
        if (is_long ? strncmp(names[i], word + 2, len) != 0 : !option || option->key != word[1])
            continue;
        return option && option->arg && word[is_long ? 2 + len : 2] == '\0' ? 2 : 1;
    }
    if (!is_long && strchr("h?V", word[1])) return 1;
    return refuse_flag(program, word, names, num_names);
}

// The place of the command in argv: the first word that is neither a flag nor the value of one. 0:
// there is none; negative: an unknown flag stands before it.
static int find_command_word(int argc, char **argv) {
    struct argp_option table[MAX_OPTIONS + 1];
    size_t num_options = gather_options(table, NULL);
    for (int i = 1, num_words = 0; i < argc; i += num_words) {
        if (argv[i][0] != '-' || argv[i][1] == '\0') return i;
        num_words = count_flag_words("gradsync", table, num_options, argv[i]);
        if (num_words == 0) return -1;
    }
    return 0;
}

static bool check_flags(const char *program, const struct argp_option *table, size_t num_options,
                        char **words) {
    int num_words = 1;
    for (char **word = words + 1; *word && strcmp(*word, "--") != 0; word += num_words) {
        num_words = 1;
        if (strncmp(*word, "--", 2) == 0)
            num_words = count_flag_words(program, table, num_options, *word);
        if (num_words == 0) return false;
        if (num_words == 2 && !word[1]) return true;  // its value is missing, says argp
    }
    return true;
}

// argv without the command, parsed by the command's own table.
static int parse_command(gs_cli_options *options, const gs_cli_command *command, int at, int argc,
                         char **argv) {
    struct argp_option table[MAX_OPTIONS + 1];
    char usage[64], documentation[2048], name[64], help[] = "--help";
    size_t num_options = gather_options(table, command->flags);
    snprintf(usage, sizeof usage, "%s", command->args);
    snprintf(documentation, sizeof documentation, "%s\v%s\n", command->summary, command->help);
    snprintf(name, sizeof name, "gradsync %s", command->name);

    char **words = calloc((size_t)argc + 1, sizeof *words);
    if (!words) return GS_EXIT_JOB_FAILED;
    int num_words = 0;
    words[num_words++] = name;
    for (int i = 1; i < argc; i++)
        if (i != at) words[num_words++] = strcmp(argv[i], "-h") == 0 ? help : argv[i];
    if (!check_flags(name, table, num_options, words)) {
        free(words);
        return GS_EXIT_USAGE;
    }
    struct argp argp = {
        .options = table, .parser = take_option, .args_doc = usage, .doc = documentation};
    error_t error = argp_parse(&argp, num_words, words, 0, NULL, options);
    free(words);
    if (error) return GS_EXIT_USAGE;
    if (options->file && !strpbrk(command->flags, "Ou")) {
        fprintf(stderr, "%s: --output: '%s' is not table, json or name\n", command->name,
                options->file);
        return GS_EXIT_USAGE;
    }
    if (options->num_args < command->least_args || options->num_args > command->most_args) {
        fprintf(stderr, "Usage: gradsync %s %s\n  `gradsync %s --help` shows examples\n",
                command->name, command->args, command->name);
        return GS_EXIT_USAGE;
    }
    return GS_EXIT_OK;
}

static int run_command(const gs_cli_command *command, gs_cli *cli) {
    if (!command->no_server) {
        gs_cli_identity_wish wish = {.server = cli->options.server,
                                     .context = cli->options.context,
                                     .token_file = cli->options.token_file,
                                     .cacert = cli->options.cacert};
        gs_status status = gs_cli_identity_find(&cli->identity, &wish);
        if (status.code) {
            fprintf(stderr, "gradsync: %s\n", status.message);
            return GS_EXIT_USAGE;
        }
        gs_cli_server server = {cli->identity.server, cli->identity.token, cli->identity.cacert};
        cli->http = gs_cli_http_open(&server, cli->options.timeout_seconds, cli->options.debug);
        if (!cli->http) {
            fprintf(stderr, "gradsync: cannot start the HTTP client\n");
            return GS_EXIT_JOB_FAILED;
        }
    }
    int exit_code = command->run(cli);
    gs_cli_http_close(cli->http);
    return exit_code;
}

int main(int argc, char **argv) {
    argp_err_exit_status = GS_EXIT_USAGE;
    int at = find_command_word(argc, argv);
    if (at < 0) return GS_EXIT_USAGE;
    const char *name = at ? argv[at] : "";
    bool asks_help = strcmp(name, "help") == 0;
    for (int i = 1; i < argc && !at; i++) {
        if (strcmp(argv[i], "--version") == 0) name = "version";
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) asks_help = true;
    }
    if (asks_help && at && at + 1 < argc) {  // "help submit" is "submit --help"
        const gs_cli_command *about = find_command(argv[at + 1]);
        if (!about) return refuse_command(argv[at + 1]);
        char help[] = "--help", *words[] = {argv[0], argv[at + 1], help, NULL};
        gs_cli_options unused = {0};
        return parse_command(&unused, about, 1, 3, words);
    }
    if (asks_help) {
        print_commands(stdout);
        return GS_EXIT_OK;
    }
    if (!*name) {
        print_commands(stderr);
        return GS_EXIT_USAGE;
    }
    if (!at && strcmp(name, "version") == 0) {
        puts(argp_program_version);
        return GS_EXIT_OK;
    }
    const gs_cli_command *command = find_command(name);
    if (!command) return refuse_command(name);
    gs_cli cli = {.options = {.timeout_seconds = 10}};
    int exit_code = parse_command(&cli.options, command, at, argc, argv);
    return exit_code == GS_EXIT_OK ? run_command(command, &cli) : exit_code;
}
