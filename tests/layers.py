#!/usr/bin/env python3
"""The map of the sources, as a test. Fails on

* an #include that the tables below do not allow, between layers or between rooms of a layer;
* a room with no sentence in docs/architecture.md, or with another one's list of rooms there;
* a foreign library that is included elsewhere than in its own place;
* a circle of includes between nouns (a noun is a header with its source);
* an #include that this test cannot follow: in <>, of a macro, of what is no source;
* a state of a job, a run or a member that is set elsewhere than where transitions are checked;
* with --objects: a call into a room that may not be included, and a circle of calls between the sources of a room,
  as `nm` sees them, and a call out of a room that decides to anything but a short list. It sees what has been
  built: run.sh runs it on whole builds.

    layers.py [--objects BUILD/…] SOURCE_DIR
"""
import argparse
import os
import re
import subprocess
import sys

# layer → layers that it may include
LAYERS = {
    "core": [],
    "rpc": ["core"],
    "kernels": ["core"],
    "gradsync": ["core", "kernels"],
    "worker": ["core", "rpc", "kernels", "gradsync"],
    "coordinator": ["core", "rpc"],
    "api": ["core", "rpc"],
}

# Rooms of a layer, in order: a room may include those named behind it, which all stand above it. A layer's
# own folder is the room "."; what lies in a layer that has no rooms is not looked at here.
ROOMS = {
    "kernels": {
        ".": [],
        "cpu": ["."],
        "cuda": ["."],
    },
    "gradsync": {
        "tensor": [],
        "comm": ["tensor"],
        "comm/shm": ["comm", "tensor"],
        "comm/net": ["comm", "tensor"],
        "comm/hosts": ["comm/net", "comm", "tensor"],
        "comm/nccl": ["comm", "tensor"],
        "step": ["comm", "tensor"],
        "bucket": ["comm", "tensor"],
        "hooks": ["bucket", "comm", "tensor"],
        "optim": ["tensor"],
        "reducer": ["hooks", "bucket", "step", "comm", "tensor"],
        "sparse": ["reducer", "bucket", "comm", "tensor"],
        "sharded": ["hooks", "optim", "step", "bucket", "comm", "tensor"],
        "replicas": ["reducer", "bucket", "step", "comm", "tensor"],
        "local": ["sparse", "tensor"],
        "ffi": ["sharded", "reducer", "optim", "hooks", "step", "bucket", "comm", "tensor"],
        ".": ["ffi", "local", "replicas", "sharded", "sparse", "reducer", "optim", "hooks", "bucket", "step", "comm", "tensor"],
    },
    "worker": {
        ".": [],
        "data": [],
        "models": [],
        "telemetry": [],
        "state": ["models"],
        "checkpoint": ["state"],
        "control": ["checkpoint", "telemetry", "state", "."],
        "pass": ["state", "models", "data", "telemetry"],
        "trainer": ["pass", "control", "checkpoint", "state", "telemetry", "models", "data", "."],
        "probes": [],
        "agent/host": ["."],
        "agent": ["agent/host", "probes", "."],
    },
    "coordinator": {
        "rules": [],
        "model": ["rules"],
        "engine/base": ["model", "rules"],
        "engine/runs": ["engine/base", "model", "rules"],
        "engine": ["engine/runs", "engine/base", "model", "rules"],
        "store/database": ["model", "rules"],
        "store/record": ["model", "rules"],
        "store/files": ["model", "rules"],
        "store": ["store/database", "store/record", "store/files", "model", "rules"],
        "observe/reports": [],
        "observe/views": ["model", "rules"],
        "observe": ["observe/reports", "observe/views", "store", "store/record", "engine/base", "model", "rules"],
        "observe/hosts": ["observe", "observe/reports", "observe/views", "store", "store/record", "store/files", "engine/base", "model", "rules"],
        "observe/metrics": ["observe", "observe/reports", "store", "store/record", "engine/base", "model", "rules"],
        "serve": ["observe/metrics", "observe/hosts", "observe", "observe/reports", "observe/views", "store", "store/database", "store/record", "store/files",
                  "engine", "engine/runs", "engine/base", "model", "rules"],
        ".": ["serve", "store", "store/files"],
    },
    "rpc": {
        "json": [],
        "checkpoint": ["json"],
        "schema": ["json"],
        "plan": ["json"],
        "keys": ["schema", "json"],
        "wire": ["keys", "schema", "json"],
        "client": ["wire", "keys", "schema", "json"],
        "server": ["client", "wire", "keys", "schema", "json"],
    },
    "api": {
        "access": [],
        "http": [],
        "render": ["http"],
        "live": ["http", "access"],
        "routes": ["live", "render", "http", "access"],
        ".": ["routes", "live", "render", "http", "access"],
        "cli": [],
    },
}

# file → layers and rooms that it may include besides: the places where a process is put together.
FILES = {
    "coordinator/main.c": ["api/."],
    "worker/main.c": ["worker/agent", "worker/agent/host", "worker/trainer"],
}

# header → where it may be included
LIBRARIES = {
    r"zmq\.h": "rpc/",
    r"json-c/": "rpc/",
    r"sqlite3\.h": "coordinator/store/database/database.c",
    r"microhttpd\.h": "api/http/http_server.c",
    r"gnutls/": "api/",
    r"curl/curl\.h": "api/cli/http_client.c",
    r"cblas\.h": "kernels/cpu/blas.c",
    r"xxhash\.h": "core/digest.c",
    r"hwloc\.h": "worker/agent/host/topology.c",
    r"nccl\.h": "gradsync/comm/nccl/library.c",
    r"cuda[a-z0-9_]*\.h": "kernels/cuda/",
    r"cublas[A-Za-z0-9_]*\.h": "kernels/cuda/",
}

# Rooms that decide: the same events lead to the same state, wherever they are played. What they may call outside of
# themselves is all here: no clock, no file, no thread, no lock, no JSON, no log.
PURE = ["coordinator/rules", "coordinator/model", "coordinator/engine"]
PURE_CALLS = set("""
    abort calloc free memcmp memcpy memmove memset qsort realloc snprintf strchr strcmp strdup strlen strncmp strsignal
    strspn vsnprintf
    gs_bucket_plan_digest gs_bucket_plan_release gs_digest_fold gs_digest_format gs_digest_parse gs_error
    gs_fault_kind_name gs_hash64 gs_job_hook_trains_apart gs_job_plan_follows_link gs_job_plan_forecast gs_job_plan_is_fixed gs_job_plan_make_at
    gs_job_spec_may_use_gpu gs_job_spec_needs_gpu gs_link_model_is_known gs_link_report_copy gs_link_report_release gs_plan_offers_release
    gs_model_params_of_spec gs_ok gs_param_list_append gs_param_list_release gs_param_page_release
    gs_param_specs_compare gs_param_specs_digest gs_random_u64 gs_seconds_of gs_status_prefix gs_u64_map_get
    gs_u64_map_release gs_u64_map_remove gs_u64_map_set
""".split())
# What compilers add, and what says why a build for debugging stops.
PURE_EXTRAS = re.compile(r"_GLOBAL_OFFSET_TABLE_|__(asan|ubsan|tsan|sanitizer|gcov|stack_chk|assert)_\w+|"
                         r"__(mem|str)\w+_chk|__v?snprintf_chk")

# Who moves a job, a run, a member or a checkpoint to another state asks the tables of transitions: in one place. Whatever the variable is
# called, also by an address that is given away. What is made, or read from its row, has its state.
STATE = r"(?:->|(?<=[\w)\]])\.)(?:stage|phase|state)\b"
CHANGED = r"\s*(?:=(?!=)|[-+*/%|&^]=|<<=|>>=|\+\+|--)"
MOVES = re.compile(rf"{STATE}{CHANGED}|(?:\+\+|--|(?<!&)&)\(?[\w.>\[\]-]+{STATE}(?!\s*(?:\.|->|\[))")
MOVERS = ["coordinator/engine/base/moves.c"]
MAKERS = {"coordinator/engine/adoption.c": ["member->stage = GS_MEMBER_UP;", "run->phase = GS_RUN_RELOADING;"],
          "coordinator/model/checkpoint.c": ["if (is_gone) loaded.state = GS_CHECKPOINT_DELETING;"],
          "coordinator/store/record/checkpoint_record.c": [
              'checkpoint->state = gs_json_bool_or(body, "deleting", false) ? GS_CHECKPOINT_DELETING : GS_CHECKPOINT_GOOD;'],
          "coordinator/store/record/job_record.c": [
              "item->state = GS_CHECKPOINT_DELETING;",
              'if (!gs_job_state_from_name(&job->state, gs_json_string_or(record, "state", "")) ||'],
          "coordinator/store/record/run_record.c": [
              'member->stage = gs_json_bool_or(record, "left", false) ? GS_MEMBER_SETTLING : GS_MEMBER_UP;',
              "member->stage = GS_MEMBER_LEAVING;", "member->stage = GS_MEMBER_EXITED;",
              "run->phase = phase >= GS_RUN_SETTLING ? GS_RUN_SETTLING : GS_RUN_RELOADING;"]}
# What has a word of the same name and none of these tables: the state of all that there is; rows of events, pages, views.
ALL_STATE = re.compile(r"&(?:engine|event->engine)->state\b")
OTHER_STATES = re.compile(r"\b(?:row->state|page->stage|self->stage|shot->state|view\.phase|view->phase|observer->state)\b")

# A room that holds more is two. The kernels of a device are one list in many files.
MOST_NOUNS = 15
CROWDED = ["kernels"]

# Layers whose nouns may still lie in a circle.
CIRCLES_ALLOWED = []

SOURCES = (".c", ".h", ".cu", ".cuh", ".cc")
INCLUDE = re.compile(r'^[ \t]*(?:/\*.*\*/)?[ \t]*#[ \t]*include(?:_next)?\b[ \t]*(?:(["<])([^">]+)[">]|(\S+))')


def sources_of(root):
    for layer in LAYERS:
        for folder, _, files in os.walk(os.path.join(root, layer)):
            for name in sorted(files):
                if name.endswith(SOURCES):
                    yield os.path.relpath(os.path.join(folder, name), root)


def includes_of(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        for line in file:
            found = INCLUDE.match(line)
            if found:
                yield found.group(1), found.group(2) or found.group(3)


def layer_of(path):
    return path.split("/")[0]


def room_of(path):
    """The room that a file lies in; None where the layer has no rooms."""
    layer = layer_of(path)
    if layer not in ROOMS:
        return None
    return os.path.dirname(path)[len(layer) + 1:] or "."


def noun_of(path):
    return os.path.splitext(path)[0]


def check_arrow(path, target):
    layer, target_layer = layer_of(path), layer_of(target)
    extra = FILES.get(path, [])
    if target_layer not in LAYERS:
        yield f'{path}: "{target}" is in no layer'
    elif layer != target_layer:
        if target_layer not in LAYERS[layer] and f"{target_layer}/{room_of(target) or '.'}" not in extra:
            yield f"{path}: {layer} may not include {target_layer} ({target})"
    elif layer in ROOMS:
        room, target_room = room_of(path), room_of(target)
        if room not in ROOMS[layer] or target_room not in ROOMS[layer]:
            return  # said by check_rooms
        if target_room != room and target_room not in ROOMS[layer][room] and f"{layer}/{target_room}" not in extra:
            yield f"{path}: room {room} may not include {target_room} ({target})"


def check_includes(root, paths):
    """Wrong arrows and foreign libraries; and the graph of nouns."""
    findings, nouns = [], {}
    for path in paths:
        edges = nouns.setdefault(noun_of(path), {})
        for quote, target in includes_of(root, path):
            if not quote:
                findings.append(f"{path}: {target} is included, a macro")
            elif quote == "<" and layer_of(target) in LAYERS:
                findings.append(f"{path}: <{target}> is included as if it were a foreign library")
            elif quote == "<":
                for header, home in LIBRARIES.items():
                    if re.match(header, target) and not path.startswith(home):
                        findings.append(f"{path}: <{target}> belongs to {home} alone")
            elif "/" not in target:
                findings.append(f'{path}: "{target}" is included without its folder')
            elif not target.endswith((".h", ".cuh")):
                findings.append(f'{path}: "{target}" is no header')
            else:
                if not os.path.exists(os.path.join(root, target)):
                    findings.append(f'{path}: "{target}" does not exist')
                findings.extend(check_arrow(path, target))
                if noun_of(target) != noun_of(path):
                    edges[noun_of(target)] = path
    return findings, nouns


def check_moves(root, paths):
    for path in paths:
        if not path.startswith("coordinator/") or path in MOVERS:
            continue
        with open(os.path.join(root, path), encoding="utf-8") as file:
            for line in file:
                shown = ALL_STATE.sub("", line)
                shown = OTHER_STATES.sub("", shown) if path.startswith("coordinator/observe/") else shown
                if MOVES.search(shown) and line.strip() not in MAKERS.get(path, []):
                    yield f"{path}: moves past the tables of transitions: {line.strip()}"


def circles_in(graph):
    """Strongly connected components of more than one node, each sorted (Tarjan 1972)."""
    index, low, stack, on_stack, found = {}, {}, [], set(), []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        on_stack.add(node)
        for target in graph[node]:
            if target not in graph:
                continue
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in on_stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            circle = []
            while not circle or circle[-1] != node:
                circle.append(stack.pop())
                on_stack.discard(circle[-1])
            if len(circle) > 1:
                found.append(sorted(circle))

    sys.setrecursionlimit(10000)
    for node in sorted(graph):
        if node not in index:
            visit(node)
    return found


def check_circles(graph, what):
    for circle in circles_in(graph):
        if not all(layer_of(node) in CIRCLES_ALLOWED for node in circle):
            yield f"circle of {what}: {' '.join(circle)}"


def check_rooms(paths):
    """Each folder of a layer that has rooms is one, and the tables are in order."""
    for layer, rooms in ROOMS.items():
        above = []
        for room, allowed in rooms.items():
            for name in allowed:
                if name not in above:
                    yield f"layers.py: {layer}: room {room} names {name}, which does not stand above it"
            above.append(room)
            nouns = {noun_of(path) for path in paths if layer_of(path) == layer and room_of(path) == room}
            headers = sum(f"{noun}.h" in paths for noun in nouns)
            if not nouns:
                yield f"layers.py: {layer}: room {room} is empty"
            elif layer not in CROWDED and headers > MOST_NOUNS:
                yield f"{layer}: room {room} has {headers} nouns, more than {MOST_NOUNS}"
    for path in paths:
        if room_of(path) is not None and room_of(path) not in ROOMS[layer_of(path)]:
            yield f"{path}: {room_of(path)} is no room of {layer_of(path)}"


def check_document(root):
    """The tables of docs/architecture.md: | `folder` | may include | is |."""
    with open(os.path.join(root, "docs/architecture.md"), encoding="utf-8") as file:
        rows = dict(re.findall(r"^\| `([a-z_/]+)/?` \| ([^|]*) \|", file.read(), re.MULTILINE))
    expected = dict(LAYERS)
    for layer, rooms in ROOMS.items():
        if layer == "kernels":
            continue
        for room, allowed in rooms.items():
            if room != ".":
                expected[f"{layer}/{room}"] = [layer if name == "." else name for name in allowed]
    for name, allowed in expected.items():
        if name not in rows:
            yield f"docs/architecture.md: no row for {name}"
            continue
        told = [word for word in re.split(r"[,\s]+", rows[name].replace("–", "")) if word]
        if sorted(told) != sorted(allowed):
            yield f"docs/architecture.md: {name} may include {', '.join(allowed) or 'nothing'}, not {rows[name]}"


def symbols_of(path):
    """what an object has for others, what of it are functions, and what it needs"""
    defined, functions, undefined = set(), set(), set()
    text = subprocess.run(["nm", "--format=posix", path], check=True, capture_output=True, text=True).stdout
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 2 and fields[0].startswith("gs_"):
            (undefined if fields[1] == "U" else defined if fields[1].isupper() else set()).add(fields[0])
            if fields[1] in "TW":
                functions.add(fields[0])
    return defined, functions, undefined


def find_objects(objects, paths):
    """source → its objects (a kernel has one for each instruction set); a build without a device lacks its half"""
    found = {}
    for folder, _, files in os.walk(objects):
        for name in files:
            if name.endswith((".c.o", ".cu.o")) and "CMakeFiles" in folder:
                layer = os.path.relpath(folder, objects).split("/CMakeFiles/")[0]
                inner = os.path.join(folder, name).split(".dir/", 1)[1]
                path = f"{layer}/{inner[:-2]}"
                if path in paths:
                    found.setdefault(path, []).append(os.path.join(folder, name))
    return found


def check_calls(objects, found):
    """Calls against the arrows, whoever declared the function, and circles between the sources of one room.

    A table of functions that has a name (gs_comm_shm) turns an arrow round on purpose: it is no call.
    """
    if not found:
        yield f"{objects}: there are no objects"
        return
    symbols = {}
    for path, names in found.items():
        symbols[path] = [set().union(*sets) for sets in zip(*map(symbols_of, names))]
    home = {name: path for path in symbols for name in symbols[path][1]}
    for path in symbols:
        for name in sorted(symbols[path][2]):
            if home.get(name, path) != path:
                yield from (f"{finding}: calls {name}" for finding in check_arrow(path, home[name]))
    rooms = {}
    for path in symbols:
        rooms.setdefault(os.path.dirname(path), []).append(path)
    for members in rooms.values():
        owner = {name: path for path in members for name in symbols[path][0]}
        graph = {path: {owner[name] for name in symbols[path][2] if name in owner} - {path} for path in members}
        yield from check_circles(graph, "calls")


def check_purity(found):
    """Of rooms that decide: what their objects need and no object of theirs has."""
    pure = [path for path in found if any(path.startswith(room + "/") for room in PURE)]
    if not pure:
        yield "layers.py: no room that decides has been built"
    defined, needed = set(), {}
    for path in pure:
        for name in found[path]:
            text = subprocess.run(["nm", "--format=posix", name], check=True, capture_output=True, text=True).stdout
            for symbol, kind in (line.split()[:2] for line in text.splitlines() if len(line.split()) >= 2):
                if kind == "U":
                    needed.setdefault(symbol, path)
                else:
                    defined.add(symbol)
    for symbol in sorted(set(needed) - defined - PURE_CALLS):
        if not PURE_EXTRAS.fullmatch(symbol):
            yield f"{needed[symbol]}: decides, and calls {symbol}"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--objects", help="a build folder: calls are checked too")
    parser.add_argument("source_dir")
    arguments = parser.parse_args()
    root = arguments.source_dir
    paths = list(sources_of(root))
    if arguments.objects:
        compiled = find_objects(arguments.objects, set(paths))
        findings = list(check_calls(arguments.objects, compiled)) + list(check_purity(compiled))
    else:
        findings, nouns = check_includes(root, paths)
        findings += check_rooms(paths)
        findings += check_circles(nouns, "includes")
        findings += check_moves(root, paths)
        findings += check_document(root)
    for finding in sorted(findings):
        print(finding)
    if findings:
        sys.exit(1)
    if arguments.objects:
        sources = [path for path in paths if not path.endswith((".h", ".cuh"))]
        print(f"calls of {len(compiled)} sources keep to the map; {len(sources) - len(compiled)} are not built here")
    else:
        print(f"{len(paths)} files keep to the map")


if __name__ == "__main__":
    main()
