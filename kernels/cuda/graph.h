// Work of a stream, kept to be launched again, as the backend's table has it (kernels/backend.h).
#ifndef KERNELS_CUDA_GRAPH_H
#define KERNELS_CUDA_GRAPH_H

#include "kernels/cuda/types.h"

GS_NODISCARD gs_status gs_cuda_graph_begin(gs_stream *stream);
GS_NODISCARD gs_status gs_cuda_graph_end(gs_graph **out, gs_stream *stream);
GS_NODISCARD gs_status gs_cuda_graph_launch(gs_graph *graph, gs_stream *stream);
void gs_cuda_graph_destroy(gs_graph *graph);

#endif
