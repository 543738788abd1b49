// graph.c - see graph.h.
//
//   n12 [label=<<b>rsqrt+sum</b><br/>llama.lm:26>];   subgraph cluster_n20 { n20_in … n20_out } n12
//   -> n13 [label="f32[b, t, d]"];
#include "driver/inspect/graph.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "compiler/ir/dot.h"
#include "compiler/plan/planner.h"

typedef struct drawing {
  const lm_module *m;
  lm_arena *arena;
  lm_buf nodes;
  lm_buf edges;
  uint32_t n; // nodes so far
} drawing;

static const char *fill_of(const lm_op *op) {
  if (op->code == LM_OP_KERNEL)
    return "#dbe9f6";
  if (lm_op_multiplies(op))
    return "#fde3c8";
  return lm_op_attends(op) ? "#d7efd3" : "#eeeeee";
}

static void markup(lm_buf *b, const char *s, size_t n) {
  for (size_t i = 0; i < n; i++) {
    const char *entity = s[i] == '<' ? "&lt;" : s[i] == '>' ? "&gt;" : s[i] == '&' ? "&amp;" : NULL;
    if (entity)
      lm_buf_puts(b, entity);
    else
      lm_buf_add(b, s + i, 1);
  }
}

// ---- nodes

// The label of a node: the operation in bold, its source lines below.
static void op_draw(drawing *d, const lm_op *op) {
  const char *label = lm_plan_label(d->arena, d->m, op);
  const char *origin = lm_plan_origin(d->arena, d->m, op);
  size_t n = strlen(label) - (*origin ? strlen(origin) + 1 : 0);
  if (!strncmp(label, "kernel ", 7) && n > 7) {
    label += 7;
    n -= 7;
  }
  lm_buf_printf(&d->nodes, "n%u [fillcolor=\"%s\" label=<<b>", op->mark, fill_of(op));
  markup(&d->nodes, label, n);
  lm_buf_puts(&d->nodes, "</b>");
  if (op->attr.sym) {
    lm_buf_puts(&d->nodes, "<br/>");
    markup(&d->nodes, op->attr.sym, strlen(op->attr.sym));
  }
  if (*origin)
    lm_buf_puts(&d->nodes, "<br/><font point-size=\"9\" color=\"#666666\">");
  markup(&d->nodes, origin, strlen(origin));
  lm_buf_puts(&d->nodes, *origin ? "</font>>];\n" : ">];\n");
}

static void global_draw(drawing *d, const lm_op *op) {
  lm_buf_printf(&d->nodes,
                "n%u [style=\"\" shape=plaintext fontcolor=\"#8a5a00\" label=", op->mark);
  lm_buf_json(&d->nodes, op->attr.sym);
  lm_buf_puts(&d->nodes, "];\n");
}

static void argument_draw(drawing *d, const lm_value *v) {
  lm_buf_printf(&d->nodes, "v%u [shape=ellipse fillcolor=\"#ffffff\" label=", v->id);
  lm_buf_json(&d->nodes, v->name ? v->name : "");
  lm_buf_puts(&d->nodes, "];\n");
}

// ---- edges

// The node that a value comes from; NULL: none is drawn.
static const char *source_of(const drawing *d, const lm_value *v) {
  while (v->def && lm_op_info_of(v->def)->traits & LM_T_VIEW)
    v = v->def->in[0];
  const lm_op *op = v->def ? v->def : v->region->owner;
  if (!op)
    return lm_arena_printf(d->arena, "v%u", v->id);
  if (op->code == LM_OP_CONST || (!v->def && v->index == 0))
    return NULL; // a loop's index
  const char *part = op->code != LM_OP_LOOP ? "" : v->def ? "_out" : "_in";
  return lm_arena_printf(d->arena, "n%u%s", op->mark, part);
}

// The width of an edge: from half a point for a scalar to five points for a tensor as large as
// memory.
static double width_of(const drawing *d, lm_type t) {
  double bytes = lm_type_traffic(d->m, t);
  double w = 0.25 * (log2(bytes) - 8);
  return w < 0.5 ? 0.5 : w > 5 ? 5 : w;
}

static void edge_draw(drawing *d, const lm_value *v, const char *to) {
  const char *from = source_of(d, v);
  if (!from)
    return;
  lm_buf type = {0};
  lm_type_print(d->m, v->type, &type);
  lm_buf_printf(&d->edges, "%s -> %s [penwidth=%.2f label=\"%s\"];\n", from, to,
                width_of(d, v->type), type.p);
  lm_buf_free(&type);
}

static void operands_draw(drawing *d, const lm_op *op, const char *part) {
  const char *to = lm_arena_printf(d->arena, "n%u%s", op->mark, part);
  for (uint32_t i = 0; i < op->n_in; i++)
    edge_draw(d, op->in[i], to);
}

// ---- regions

static void region_draw(drawing *d, lm_region *r);

static void loop_draw(drawing *d, lm_op *op) {
  const char *axis = op->attr.n_axes ? d->m->axes[op->attr.axes[0]].name : "";
  lm_buf_printf(&d->nodes,
                "subgraph cluster_n%u {\nlabel=\"%lld times %s\" style=\"rounded,filled\" "
                "fillcolor=\"#f6f6f2\" color=\"#aaaaaa\" fontsize=14;\n",
                op->mark, (long long)op->attr.imm[0], axis);
  lm_buf_printf(
      &d->nodes,
      "n%u_in [shape=cds fillcolor=\"#ffffff\" label=\"each iteration\"];\nn%u_out [shape=cds "
      "fillcolor=\"#ffffff\" label=\"results\"];\n",
      op->mark, op->mark);
  operands_draw(d, op, "_in");
  region_draw(d, op->body);
  const char *out = lm_arena_printf(d->arena, "n%u_out", op->mark);
  for (uint32_t i = 0; i < op->body->last->n_in; i++)
    edge_draw(d, op->body->last->in[i], out);
  lm_buf_puts(&d->nodes, "}\n");
}

static bool drawn(const lm_op *op) {
  return op->code != LM_OP_CONST && op->code != LM_OP_YIELD &&
         !(lm_op_info_of(op)->traits & LM_T_VIEW);
}

static void region_draw(drawing *d, lm_region *r) {
  for (lm_op *op = r->first; op; op = op->next) {
    op->mark = ++d->n;
    if (!drawn(op))
      continue;
    if (op->code == LM_OP_LOOP) {
      loop_draw(d, op);
      continue;
    }
    if (op->code == LM_OP_PARAM)
      global_draw(d, op);
    else {
      op_draw(d, op);
      operands_draw(d, op, "");
    }
  }
}

static void func_draw(drawing *d, lm_func *f, lm_buf *out) {
  for (uint32_t i = 0; i < f->body->n_args; i++)
    argument_draw(d, f->body->args[i]);
  region_draw(d, f->body);
  lm_buf_printf(out,
                "digraph \"%s\" {\ngraph [fontname=\"Helvetica\" label=\"@%s\" labelloc=t "
                "fontsize=18 nodesep=0.25 ranksep=0.4];\n",
                f->name, f->name);
  lm_buf_puts(out, "node [shape=box style=\"rounded,filled\" fontname=\"Helvetica\" fontsize=11 "
                   "color=\"#888888\" margin=\"0.12,0.06\"];\n"
                   "edge [fontname=\"Helvetica\" fontsize=8 fontcolor=\"#999999\" "
                   "color=\"#555555\" arrowsize=0.6];\n");
  lm_buf_add(out, d->nodes.p, d->nodes.n);
  lm_buf_add(out, d->edges.p, d->edges.n);
  lm_buf_puts(out, "}\n");
}

static lm_status func_write(const lm_module *m, lm_func *f, const char *dir) {
  drawing d = {
      .m = m,
      .arena = lm_arena_create(),
  };
  lm_buf text = {0};
  func_draw(&d, f, &text);
  lm_status s = lm_file_write_atomic(
      lm_path_join(d.arena, dir, lm_arena_printf(d.arena, "%s.dot", f->name)), text.p, text.n);
  lm_buf_free(&text);
  lm_buf_free(&d.nodes);
  lm_buf_free(&d.edges);
  lm_arena_destroy(d.arena);
  return s;
}

lm_status lm_graphs_write(lm_module *m, const char *dir) {
  for (lm_func *f = m->funcs; f; f = f->next)
    LM_TRY(func_write(m, f, dir));
  return NULL;
}
