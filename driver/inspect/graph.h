// graph.h - functions of a module as graphs for Graphviz.
#ifndef LM_DRIVER_GRAPH_H
#define LM_DRIVER_GRAPH_H
#include "compiler/ir/ir.h"

// Writes NAME.dot in `dir` for each function. Nodes are the operations that become a step of the
// plan; edges are tensors, wider with more bytes; a loop is a frame with its operands, its results
// and its trip count. Overwrites the marks of operations.
lm_status lm_graphs_write(lm_module *m, const char *dir);
#endif
