#include "gradsync/sparse/row_places.h"

#define NUM_TURNS 32
#define TURN_SECONDS 60.0

gs_status gs_row_places_init(gs_row_places *places, gs_device *device) {
    void *memory;
    *places =
        (gs_row_places){.device = device, .num_turns = gs_device_is_host(device) ? 1 : NUM_TURNS};
    GS_TRY(gs_device_alloc_pinned(device, &memory,
                                  (size_t)places->num_turns * GS_NUM_ROW_PLACES * sizeof(int32_t)));
    places->memory = memory;
    return gs_ok();
}

void gs_row_places_release(gs_row_places *places) {
    if (places->device) gs_device_free_pinned(places->device, places->memory);
    *places = (gs_row_places){0};
}

gs_status gs_row_places_take(gs_row_places *places, int32_t **piece) {
    if (places->next == places->num_turns) {
        places->next = 0;
        if (places->num_turns > 1)
            GS_TRY(gs_stream_wait(gs_device_stream(places->device),
                                  gs_deadline_in_seconds(TURN_SECONDS)));
    }
    *piece = places->memory + (size_t)places->next++ * GS_NUM_ROW_PLACES;
    return gs_ok();
}
