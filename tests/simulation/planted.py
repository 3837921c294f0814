#!/usr/bin/env python3
"""Does the simulation see? Plants one bug after the other into the engine and looks for a history that finds it.

    planted.py [--histories N] [--seconds T] [--jobs N] [--only TEXT] [SOURCE_DIR]

A bug is a text of the sources and what stands there instead; it is compiled into a copy of that file alone, so that no build of the product
knows of it. It is found when a history shows what must never be, or ends the program. Prints a table; fails when one is not found.
All are looked for in FIRST histories, and in more those that these do not show.
"""
import argparse
import concurrent.futures
import glob
import os
import subprocess
import sys
import tempfile
import time

# name, file below coordinator/, what stands there once, what stands there instead
BUGS = [
    # Numbers and names.
    ("generations: handed out before they are durable", "engine/base/generations.c",
     "numbers->next < numbers->durable_end ? numbers->next++ : 0", "numbers->next++"),
    ("generations: a life begins where the last one began", "engine/engine.c",
     "engine->state.generations.next = options->first_generation;",
     "engine->state.generations.next = options->first_generation > GS_GENERATION_BLOCK ? options->first_generation - GS_GENERATION_BLOCK : options->first_generation;"),
    ("members: all of a run have one incarnation", "engine/runs/launch.c",
     "member->incarnation = gs_mind_draw(engine);", "member->incarnation = 7;"),
    # Who may say what.
    ("admission: any generation will do", "engine/admission.c",
     "generation == (int64_t)member->job->run->generation", "generation <= (int64_t)member->job->run->generation"),
    ("admission: who has exited may go on", "engine/admission.c", "member->stage == GS_MEMBER_EXITED ||", "false ||"),
    ("hello: the launch token is not looked at, nor the end", "engine/runs/rendezvous.c",
     "member->stage == GS_MEMBER_EXITED ||\n        member->launch_token != hello->launch_token ||", "false ||"),
    # Answers.
    ("answers: a job is promised before it is durable", "engine/requests.c",
     "    write_job(engine, job, answer->ticket, key);\n    return gs_ok();",
     "    write_job(engine, job, answer->ticket, key);\n    gs_reply_with(engine, gs_kept_take(engine, &answer->held), GS_REPLY_JOB, job);\n    return gs_ok();"),
    ("answers: two of them to one request", "engine/requests.c", "    gs_call call = gs_kept_take(engine, &answer->held);\n    if (answer->kind == GS_LATE_CREATE)",
     "    gs_call call = answer->held.call;\n    gs_reply_ok(engine, call);\n    if (answer->kind == GS_LATE_CREATE)"),
    ("answers: none when the store fails", "engine/requests.c",
     "if (status.code) gs_reply_not_stored(engine, call, status);\n    else if (answer", "if (status.code) {}\n    else if (answer"),
    ("answers: an end is told before it is durable", "engine/requests.c",
     "if (!status.code && ends_since(answer, job)) {", "if (false) {"),
    ("deletions: a stop writes the row again", "engine/requests.c", "if (gs_job_is_being_deleted(job)) return false;", ""),
    ("keys: not remembered", "engine/requests.c", "if (request->key && replay_key(engine, call, request)) return;", ""),
    ("keys: not stored beside the job", "engine/requests.c", "effect->write.key = kept;", "effect->write.key = NULL;"),
    ("jobs: one that could not be stored is kept", "engine/requests.c", "if (job) drop_job(engine, job, false);", ""),
    ("jobs: a row that failed is not written again", "engine/requests.c",
     "    job->dirty = true;\n    job->dirty_since_ns = engine->state.now_ns + GS_NS_PER_SEC;", "    (void)engine;"),
    ("settle: answered twice", "engine/runs/run_life.c",
     "gs_reply_with(engine, gs_kept_take(engine, &member->settle), GS_REPLY_SETTLE, run->job)",
     "gs_reply_with(engine, member->settle.call, GS_REPLY_SETTLE, run->job)"),
    ("exchange: who is asked again is not answered", "engine/runs/rendezvous.c",
     "gs_call call = gs_kept_take(engine, &round->entries[i].held);", "gs_call call = i ? gs_kept_take(engine, &round->entries[i].held) : 0;"),
    ("members: known when their run is over", "engine/runs/run_life.c",
     "        gs_u64_map_remove(&engine->state.members, member->incarnation);\n    }\n    run->job->run = NULL;", "    }\n    run->job->run = NULL;"),
    # Rendezvous.
    ("prepare: not repeated to who was away", "engine/runs/rendezvous.c",
     "case GS_RUN_PREPARING: gs_tell_prepare(engine, member); break;", "case GS_RUN_PREPARING: break;"),
    ("start: not repeated to who was away", "engine/runs/rendezvous.c",
     "        gs_tell_prepare(engine, member);\n        gs_tell_start(engine, member);\n        break;", "        gs_tell_prepare(engine, member);\n        break;"),
    ("go: sent before all are in the communicator", "engine/runs/rendezvous.c",
     "        if (run->members[i].stage != GS_MEMBER_UP) return;\n    }\n    gs_run_enter", "        if (run->members[i].stage < GS_MEMBER_READY) return;\n    }\n    gs_run_enter"),
    ("start: sent when one is ready", "engine/runs/rendezvous.c", "if (run->members[i].stage != GS_MEMBER_READY) return;",
     "if (run->members[0].stage != GS_MEMBER_READY) return;"),
    # Life and death.
    ("silence: most are silent, and all are judged", "engine/deadlines.c",
     "bool most = 2 * found->out_of_reach > found->awaited;", "bool most = false;"),
    ("silence: steps that advance prove nothing", "engine/deadlines.c",
     "if (run->step > member->heard_at_step && run->progress_ns > sign_ns) sign_ns = run->progress_ns;", ""),
    ("agents: one that is silent is dead, and so are its trainers (two sets)", "engine/runs/agents.c",
     "return count_members(engine, agent).count == 0 && !(may_return && has_unknown(agent));", "return may_return || !has_unknown(agent);"),
    ("agents: connections that were closed are proof of death (two sets)", "engine/runs/agents.c",
     "bool are_dead = has_witness(engine, agent);", "bool are_dead = true;"),
    ("agents: trainers that came back without it are dead", "engine/runs/agents.c",
     "if (gs_agent_holds(agent, member)) continue;", ""),
    ("agents: what it does not run goes on running", "engine/runs/agents.c", "    notice_missing(engine, agent);\n    claim_devices", "    claim_devices"),
    ("agents: a slot stays taken", "engine/runs/agents.c", "agent->slots[i] = (gs_agent_slot){0};", "(void)0;"),
    ("agents: a slot is given twice", "engine/base/orders.c",
     "agent->slots[member->slot] = (gs_agent_slot){.incarnation = member->incarnation, .job = job->id};", "(void)job;"),
    ("left behind: at once", "engine/deadlines.c", "run->phase >= GS_RUN_ENDING && (orphaned || gs_run_is_broken(run));", "true;"),
    ("left behind: never", "engine/deadlines.c", "run->phase >= GS_RUN_ENDING && (orphaned", "run->phase > GS_RUN_ENDING && (orphaned"),
    ("deadlines: a phase has none", "engine/base/moves.c",
     "run->phase_deadline_ns = deadline_ns ? run->phase_since_ns + deadline_ns : 0;", "run->phase_deadline_ns = 0;"),
    ("deadlines: stragglers are not killed", "engine/deadlines.c", "case GS_RUN_ENDING: end_stragglers(engine, run); break;", "case GS_RUN_ENDING: break;"),
    ("deadlines: a loop that stood still blames others", "engine/engine.c",
     "if (late_ns > state->timing.tick_ns) gs_deadlines_skip(engine, late_ns);", ""),
    ("drain: nobody is told who was away", "engine/runs/rendezvous.c", "if (run->draining) gs_tell_drain(engine, member);", ""),
    ("kill: forgotten when the agent comes back", "engine/runs/agents.c", "if (is_over || member->kill_sent) {", "if (false) {"),
    # Settling.
    ("settle: nobody saves", "rules/settle.c", "member->save = reached > saved_step && reached > 0;", "member->save = false;"),
    ("settle: everybody applies", "rules/settle.c",
     "member->apply = member->applied_step == target - 1 && member->complete;", "member->apply = member->complete;"),
    # Checkpoints.
    ("checkpoints: the oldest is the newest", "model/checkpoint.c", "item->step >= newest->step", "item->step < newest->step"),
    ("checkpoints: the newest is retired", "engine/base/checkpoints.c", "item->step < oldest->step", "item->step > oldest->step"),
    ("checkpoints: a start takes what an earlier one has seen", "engine/runs/launch.c",
     "job->checkpoints.is_found = job->checkpoints.is_checked = job->checkpoints.is_given_up = false;", "job->checkpoints.is_given_up = false;"),
    ("checkpoints: a start does not wait for what is being read", "engine/runs/launch.c",
     "return !gs_checkpoints_pending(checkpoints) && gs_checkpoints_are_checked", "return gs_checkpoints_are_checked"),
    ("checkpoints: what nobody could tell of is not looked for (B5)", "engine/runs/launch.c",
     "if (!checkpoints->is_found) gs_checkpoints_find_more(engine, job);", ""),
    ("checkpoints: one whose files are gone is started from", "engine/base/checkpoints.c",
     "if (checkpoints->is_checked || !gs_checkpoints_newest(checkpoints)) return true;", "return true;"),
    ("checkpoints: a save that is told is not taken", "engine/base/part_saves.c",
     "    else gs_checkpoint_take(engine, job, name, &report->found);", "    else (void)0;"),
    # Ends and beginnings.
    ("runs: over before all have exited", "engine/runs/run_end.c",
     "return gs_run_all_exited(run) && !gs_checkpoints_pending", "return run->members[0].stage == GS_MEMBER_EXITED && !gs_checkpoints_pending"),
    ("runs: never over", "engine/engine.c", "static void turn(gs_engine *engine) {\n    gs_runs_end_finished(engine);", "static void turn(gs_engine *engine) {"),
    ("bye: acknowledged before it is durable", "engine/runs/farewells.c", "    record(engine, run);\n}\n\nvoid gs_farewells_stored",
     "    gs_reply_ok(engine, gs_kept_take(engine, &member->goodbye));\n    record(engine, run);\n}\n\nvoid gs_farewells_stored"),
    ("bye: not in the record", "store/record/run_record.c", "if (member->bye.reason) gs_json_set(", "if (false) gs_json_set("),
    ("bye: held for ever where the disk is full", "engine/runs/farewells.c", "        give_up(engine, run);\n", "        (void)give_up;\n"),
    ("bye: a later life waits for who has said it", "engine/runs/rendezvous.c", "        if (member->stage >= GS_MEMBER_LEAVING) continue;\n", ""),
    ("bye: who has said it and is gone is waited for", "engine/deadlines.c", "bool has_left = member->stage == GS_MEMBER_LEAVING;", "bool has_left = false;"),
    ("runs: a stop is forgotten", "engine/stops.c", "        job->stop_asked = true;\n", ""),
    ("reload: members are not known again", "engine/start.c",
     "if (!gs_u64_map_set(&engine->state.members, member->incarnation, member)) abort();", "(void)member;"),
    ("reload: a run that trained starts anew", "store/record/run_record.c",
     "!is_kept || count == 0 ||", "!is_kept || count <= 1 ||"),
    ("reload: a run stands where its job ever stood (B9)", "store/record/run_record.c",
     'run->step = gs_json_int_or(record, "step", job->step);', "run->step = job->step;"),
    ("launch: beside a set that an agent tells of (two sets)", "engine/runs/launch.c", " && !is_still_there(engine, job);", ";"),
    ("unknown trainers: of no job that is known, and ended (B2)", "engine/runs/agents.c",
     "return !job && !gs_job_table_is_gone(jobs, running->job, names_cluster);", "return false;"),
    ("unknown trainers: those of another cluster are this one's (B2)", "engine/runs/agents.c",
     "if (gs_job_is_of_other(job, &engine->state.cluster, running->cluster)) return true;", ""),
    ("deletions: nobody remembers what was deleted", "model/job_table.c", "if (gs_job_table_tombstone(table, id)) return true;", ""),
    ("deletions: another life does not remember what was deleted", "engine/engine.c",
     "    gs_job_table_bury(&engine->state.jobs, tombstone);", "    (void)tombstone;"),
    ("adoption: in generations that follow those that ran", "engine/adoption.c", "!gs_generations_leap(engine, job->generation)", "false"),
    ("adoption: before it is durable", "engine/adoption.c", "    job->held_back = true;", "    job->held_back = false;"),
    ("adoption: by another cluster, and its ranks are started again", "engine/runs/agents.c",
     "    if (job) give_away(engine, job, running);", "    (void)job;"),
    ("release: who has said bye fails its generation", "engine/release.c", "member->stage != GS_MEMBER_LEAVING && !has_failed", "!has_failed"),
    ("checkpoints: one that was replaced is lost where that cannot be written", "engine/base/checkpoints.c",
     "        else if (!item->is_gone) gs_checkpoint_enter(engine, job, item, GS_CHECKPOINT_GOOD);\n", ""),
    ("late: who is kept waiting by others is blamed", "engine/deadlines.c", "if (!member->stream.call) return member;", "return member;"),
    ("waiting: by the clock that people set (B11)", "engine/runs/launch.c",
     "if (gs_seconds_of(engine->state.now_ns - job->waiting_since_ns) < wait_seconds) return;",
     "if ((double)(engine->state.wall_ms - job->waiting_since_ms) / 1000 < wait_seconds) return;"),
    ("jobs: launched before they are durable", "engine/runs/launch.c", "!job->held_back && !job->stop_asked", "!job->stop_asked"),
    ("jobs: a stopped one is launched again", "engine/runs/launch.c", "!job->held_back && !job->stop_asked", "!job->held_back"),
    # The disk, and SQLite on it.
    ("store: no savepoints", "store/job_store.c", 'if (status.code) GS_TRY(run_sql(store, "ROLLBACK TO part", "roll back"));', ""),
    ("store: a commit that failed is an answer", "store/transaction.c",
     "        if (!writes[i]->status.code) writes[i]->status = status;", "        (void)writes[i];"),
    ("store: no transaction", "store/job_store.c", 'run_sql(store, "BEGIN", "begin")', 'run_sql(store, "SELECT 1", "begin")'),
    ("store: writes are not waited for", "store/job_store.c", "PRAGMA synchronous = FULL", "PRAGMA synchronous = OFF"),
    ("store: a disk that cannot be read is a damaged database", "store/job_store.c", "if (!text || tells_of_disk(text)) {", "if (!text) {"),
    ("store: a start reserves no generations", "store/job_store.c", "(long long)mark + GS_GENERATION_BLOCK, (long long)epoch + 1,",
     "(long long)mark, (long long)epoch + 1,"),
    ("store: a key without its job", "store/row_work.c", "    GS_TRY(gs_job_store_put_job(store, row->work.job, row->body));\n    if (!row->key) return gs_ok();",
     "    if (!row->key) return gs_job_store_put_job(store, row->work.job, row->body);"),
    ("store: a row without its run", "store/record/job_record.c", "if (job->run) gs_json_set(record", "if (false) gs_json_set(record"),
    ("store: what is deleted keeps its checkpoints", "store/job_store.c",
     "    GS_TRY(execute(store, STATEMENT_DELETE_JOB_CHECKPOINTS, ", "    (void)(execute(store, STATEMENT_DELETE_JOB_EVENTS, "),
    ("checkpoints: what cannot be read is damaged", "engine/base/checkpoints.c",
     "if (tells_of_damage(done->status) || ", "if (true || "),
    ("checkpoints: a directory that cannot be listed is empty", "engine/base/part_saves.c",
     "        gs_checkpoints_miss_disk(engine, job, done->status);\n    } else {", "    } else {"),
    # The network: what is said again, late, or to nobody.
    ("hello of an agent: the stream of before is not ended", "engine/runs/agents.c",
     '    gs_end_stream(engine, gs_kept_take(engine, &agent->stream), gs_error(GS_ABORTED, "said hello again"));\n', ""),
    ("exits: told again, heard again", "engine/runs/agents.c", "if (member && member->stage != GS_MEMBER_EXITED) {\n        gs_member_exited",
     "if (member) {\n        gs_member_exited"),
    ("saves: told again, taken again", "engine/base/checkpoints.c",
     "    if (gs_checkpoints_find(&job->checkpoints, directory)) return;\n    gs_checkpoint *item", "    gs_checkpoint *item"),
    ("keys: two requests at once", "engine/requests.c", "    if (known->in_flight) {", "    if (false) {"),
    ("plans: the hash of another", "engine/runs/plans.c", 'snprintf(run->plan_hash, sizeof run->plan_hash, "%s", facts.hash);', 'snprintf(run->plan_hash, sizeof run->plan_hash, "%s", job->plan.hash);'),
]

SOURCES = ["tests/simulation/*.c", "coordinator/model/*.c", "coordinator/rules/*.c", "coordinator/engine/*.c",
           "coordinator/engine/*/*.c", "coordinator/store/record/*.c", "coordinator/store/job_store.c", "coordinator/store/row_work.c",
           "coordinator/store/set_aside.c", "coordinator/store/stored.c", "coordinator/store/transaction.c",
           "coordinator/store/work.c", "core/*.c", "rpc/schema/*.c", "rpc/json/*.c"]
FLAGS = ["-std=c11", "-D_GNU_SOURCE", '-DGRADSYNC_VERSION="planted"', "-DGS_GENERATION_BLOCK=2", "-O2", "-I."]
FIRST = 2000  # histories
LIBRARIES = ["-ljson-c", "-lsqlite3", "-lxxhash", "-lm", "-lpthread"]


def compile_to(root, source, output):
    subprocess.run(["cc", *FLAGS, "-c", source, "-o", output], cwd=root, check=True)


def build(root, folder):
    objects = {}
    for pattern in SOURCES:
        for path in sorted(glob.glob(os.path.join(root, pattern))):
            name = os.path.relpath(path, root)
            objects[name] = os.path.join(folder, name.replace("/", "_") + ".o")
            compile_to(root, name, objects[name])
    return objects


def plant(root, folder, objects, bug):
    """The simulation with the bug in it; a text that is not there just once is an error of this list."""
    _, file, sound, planted = bug
    path = "coordinator/" + file
    with open(os.path.join(root, path), encoding="utf-8") as source:
        text = source.read()
    if text.count(sound) != 1:
        raise SystemExit(f"planted.py: {path} has this {text.count(sound)} times: {sound}")
    copy = os.path.join(folder, "planted.c")
    with open(copy, "w", encoding="utf-8") as source:
        source.write(text.replace(sound, planted))
    changed = os.path.join(folder, "planted.o")
    compile_to(root, copy, changed)
    program = os.path.join(folder, "simulation")
    linked = [changed if name == path else output for name, output in objects.items()]
    subprocess.run(["cc", *linked, "-o", program, *LIBRARIES], check=True)
    return program


def find(program, histories, seconds):
    """What a history says of it, and which one; None: nothing."""
    try:
        done = subprocess.run([program, "--seed", "1", "--histories", str(histories), "--seconds", str(seconds), "--first"],
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds + 60, text=True, errors="replace")
    except subprocess.TimeoutExpired:
        return "a history does not end"
    for line in done.stdout.splitlines():
        if line.startswith("seed "):
            return line
    if done.returncode not in (0, 1):
        last = [line for line in done.stdout.splitlines() if line.strip()][-1:] or [""]
        return f"a history ends the program with {done.returncode}: {last[0][:120]}"
    return None


def try_bug(options, objects, bug, histories):
    begun = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        found = find(plant(options.root, folder, objects, bug), histories, options.seconds)
    missed = "MISSED" if histories == options.histories else "not yet"
    text = f"{'found  ' if found else missed} {time.monotonic() - begun:6.1f} s  {bug[0]}\n                 {found or ''}"
    print(text[:260], flush=True)
    return found is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--histories", type=int, default=100000)
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", default="")
    parser.add_argument("root", nargs="?", default=".")
    options = parser.parse_args()
    bugs = [bug for bug in BUGS if options.only in bug[0]]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        objects = build(options.root, folder)
        missed = bugs
        for histories in (min(FIRST, options.histories), options.histories):
            found = list(pool.map(lambda bug: try_bug(options, objects, bug, histories), missed))
            missed = [bug for bug, is_found in zip(missed, found) if not is_found]
    print(f"{len(bugs) - len(missed)} of {len(bugs)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
