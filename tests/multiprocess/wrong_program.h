// A wrong program: rank 1 of three has or does something else than the others. It ends within its deadline on every rank, and
// every rank's error names rank 1 and what it did.
#ifndef TESTS_MULTIPROCESS_WRONG_PROGRAM_H
#define TESTS_MULTIPROCESS_WRONG_PROGRAM_H

#include "gradsync/reducer/reducer.h"
#include "tests/support/grad_case.h"

#define WORLD 3
#define CULPRIT 1
#define WRONG_STEP 2

typedef gs_status (*wrong_step_body)(grad_rank *rank, int64_t step);

typedef struct wrong_program {
    const char *name;
    void (*everywhere)(grad_case *model);  // what all ranks have in this program
    void (*culprit)(grad_case *model);     // and what rank 1 alone has
    wrong_step_body right;                       // how ranks take a step; NULL: run_right_step
    wrong_step_body wrong;                       // how rank 1 takes step WRONG_STEP
    const char *words, *more_words;        // in the error of every rank; NULL: none needed
    const char *culprit_words;             // in the culprit's, if others than these
    bool hangs;                            // rank 1 stops, and is woken when the others have ended
    bool dies, culprit_ends_well;
} wrong_program;

// What several programs have.
void plan_again(grad_case *model, uint64_t cap_bytes, const size_t *order);
void change_passes(grad_case *model);
void make_static(grad_case *model);

gs_deadline step_deadline(int64_t step);
// Ends the step; what must not be applied is an error to these programs.
gs_status finish_step(grad_rank *rank, int64_t step);
gs_status run_right_step(grad_rank *rank, int64_t step);

// main of a test: each program is one test, WRONG_PROGRAM=name runs one alone.
int wrong_programs_main(int argc, char **argv, const wrong_program *programs, size_t num_programs);

#endif
