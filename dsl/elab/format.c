// format.c - formats: declarations that say how a block of numbers is encoded and decoded.
//
//   format int8(block = 0) {
//     fit(x: f32[..r, c]) -> f32[..r] { return max(abs(x), c) / 127 }
//     encode(x: f32[..r, c], s: f32[..r]) -> int[..r, c] { … }
//     decode(q: int[..r, c], s: f32[..r]) -> f32[..r, c] { return f32(q) * s }
//   }
//
// c is the axis of the elements of a block, ..r the other axes. `fit` computes what the elements of
// a block share, one result or a tuple, which follows the first argument of the other methods.
// qcast(x, F, over) is decode(encode(x)) with the derivative of x; where `inside` is false, if the
// format has that method, the derivative is 0. NaN stays NaN, whatever the codes are. Elements
// along `over`, in this order, are divided into blocks of `block` elements, a parameter or dim of
// the format; 0: they are one block.
#include "dsl/elab/inst.h"
#include "dsl/elab/prim.h"
#include <string.h>

bool el_is_format(const el_val *v) {
  return v->k == V_INST && v->ref.inst->decl->kind == DC_FORMAT;
}

// ---- declarations

static bool has_method(const ast_decl *d, const char *name) {
  for (uint32_t i = 0; i < d->members.n; i++)
    if (d->members.v[i]->kind == MB_METHOD && !strcmp(d->members.v[i]->names.v[0].text, name))
      return true;
  return false;
}

bool el_format_check(lm_elab *e, const ast_decl *d) {
  if (el_has_errors(d))
    return false;
  for (uint32_t i = 0; i < d->members.n; i++) {
    const ast_member *m = d->members.v[i];
    if (m->kind != MB_DIM && m->kind != MB_METHOD)
      return EL_REJECT(e, m->loc, E403, d->name.text);
  }
  for (int i = 0; i < 2; i++)
    if (!has_method(d, i ? "decode" : "encode"))
      return EL_REJECT(e, d->name.loc, E404, d->name.text, i ? "decode" : "encode");
  return true;
}

el_val el_format_make(lm_elab *e, const ast_expr *call, lm_decl_ref format) {
  el_inst_site site = {
      .decl = format,
      .path = LM_SYM(e->c, ""),
  };
  if (!el_format_check(e, format.decl))
    return el_error();
  el_inst *inst = el_inst_make(e, call, e->frame->file, &site);
  if (!inst || inst->broken)
    return el_error();
  return (el_val){
      .k = V_INST,
      .ref = el_inst_ref(inst),
  };
}

static bool values_agree(const el_val *a, const el_val *b) {
  if (a->k != b->k)
    return false;
  if (a->k == V_INST)
    return el_formats_agree(a, b);
  return a->k == V_STRING ? a->text == b->text : a->known == b->known && a->num == b->num;
}

bool el_formats_agree(const el_val *a, const el_val *b) {
  const el_inst *x = a->ref.inst;
  const el_inst *y = b->ref.inst;
  bool same = x->decl == y->decl;
  for (uint32_t k = 0; same && k < x->decl->sig.n_params; k++) {
    el_val v = el_inst_value(x, x->decl->sig.params[k].name.text);
    el_val w = el_inst_value(y, x->decl->sig.params[k].name.text);
    same = values_agree(&v, &w);
  }
  return same;
}

// ---- blocks

typedef struct blocks {
  el_axes over;  // axes of x
  el_axes order; // the axes of x with those of `over` behind the others
  el_axes split; // what becomes of `over`: the axis of the blocks, and of the elements of one
  el_axes all;   // the other axes, then `split`
  bool whole;    // `over` is one axis and one block
} blocks;

// The elements of a block. 0: all elements are one block; -1: unknown, as when a model is checked
// without arguments. False: reported.
static bool block_size(el_call_site c, const el_inst *format, int64_t *out) {
  lm_sym name = LM_SYM(c.e->c, "block");
  *out = 0;
  if (!el_names_find(&format->vals, name))
    return true;
  el_val v = el_inst_value(format, name);
  if (!c.e->m && v.k == V_NUM && !v.known) {
    *out = -1;
    return true;
  }
  bool fits = v.k == V_NUM && v.known && v.has_size;
  if (fits)
    fits = lm_size_whole(v.size, out) && *out >= 0;
  return fits || EL_REJECT(c.e, el_arg_loc(c, 1), E405, format->decl->name.text, el_show(c.e, &v));
}

// The number of elements along `over`. -1: a size is unknown, as when a model is checked without
// arguments.
static int64_t elements(el_call_site c, const el_axes *over) {
  lm_size total = lm_size_number(c.e->a, 1);
  int64_t n;
  for (uint32_t i = 0; i < over->n; i++)
    if (!lm_size_mul(c.e->a, total, over->v[i]->size, &total))
      return -1;
  return lm_size_whole(total, &n) ? n : -1;
}

static el_axis *axis_of(el_call_site c, const char *name, int64_t size) {
  lm_sym s = LM_SYM(c.e->c, name);
  return el_axis_new(c.e, s, size < 0 ? lm_size_dim(c.e->a, s) : lm_size_number(c.e->a, size), 0);
}

static bool blocks_find(el_call_site c, const el_val *x, const el_inst *format, blocks *out) {
  int64_t size;
  int64_t n = elements(c, &out->over);
  if (!block_size(c, format, &size))
    return false;
  if (n >= 0 && size > 0 && n % size)
    return EL_REJECT(c.e, c.x->loc, E406, (long long)n, el_show_axes(c.e, &out->over),
                     format->decl->name.text, (long long)size);
  out->whole = out->over.n == 1 && (!size || size == n);
  if (!size)
    size = n;
  int64_t count = n < 0 || size < 0 ? -1 : n / size;
  el_axis *of_blocks = axis_of(c, "blocks", count);
  el_axis *of_elements = axis_of(c, "element", size);
  el_axes_push(c.e, &out->split, of_blocks);
  el_axes_push(c.e, &out->split, of_elements);
  if (out->whole)
    out->split = out->over;
  el_axes rest = el_axes_minus(c.e, &x->axes, &out->over);
  out->order = el_spliced(c, &rest, rest.n, 0, &out->over);
  out->all = el_spliced(c, &rest, rest.n, 0, &out->split);
  return el_distinct(c, &out->all);
}

static el_val view(el_call_site c, const el_val *x, const el_axes *from, const el_axes *to,
                   const el_axes *all) {
  lm_attr attr = {0};
  for (uint32_t i = 0; x->v && i < from->n; i++)
    attr.axes[attr.n_axes++] = el_axis_ir(c.e, from->v[i]);
  for (uint32_t i = 0; x->v && i < to->n; i++)
    attr.to[attr.n_to++] = el_axis_ir(c.e, to->v[i]);
  return el_tensor(x->kind, all, x->v ? lm_emit(&c.e->b, LM_OP_VIEW, &x->v, 1, &attr, NULL) : NULL);
}

static el_val divided(el_call_site c, const el_val *x, const blocks *b) {
  el_val v = el_in_order(c, x->kind, &b->order, x->v);
  return b->whole ? v : view(c, &v, &b->over, &b->split, &b->all);
}

static el_val joined(el_call_site c, const el_val *x, const blocks *b, const el_axes *axes) {
  el_val v = b->whole ? *x : view(c, x, &b->split, &b->over, &b->order);
  return el_in_order(c, v.kind, axes, v.v);
}

// ---- qcast

typedef struct fitted {
  el_call_site c;
  el_ref ref;
  el_val args[1 + LM_RANK]; // the first argument of the next method, then the results of `fit`
  uint32_t n;
} fitted;

// The methods compute for the instance whose method calls, as functions do: their random numbers,
// and the rules about recomputation, are those of its path.
static el_ref caller_of(lm_elab *e, const el_inst *format) {
  const el_frame *f = e->frame;
  while (f && !f->self)
    f = f->up;
  el_inst *own = LM_NEW(e->a, el_inst);
  *own = *format;
  if (!f)
    return el_inst_ref(own);
  const el_inst *self = f->self->inst;
  el_ref ref = *f->self;
  own->path = self->path;
  own->n_stack = self->n_stack;
  memcpy(own->stack, self->stack, sizeof own->stack);
  memcpy(own->index, self->index, sizeof own->index);
  memcpy(own->stack_name, self->stack_name, sizeof own->stack_name);
  ref.inst = own;
  ref.indexed = NULL;
  ref.each = NULL;
  return ref;
}

static el_val method(fitted *f, const char *name, el_val first) {
  f->args[0] = first;
  return first.k == V_ERROR ? first
                            : el_invoke_method(f->c.e, &f->ref, LM_SYM(f->c.e->c, name), f->args,
                                               f->n, f->c.x->loc);
}

static bool fit(fitted *f, const el_val *x) {
  f->n = 1;
  if (!has_method(f->ref.inst->decl, "fit"))
    return true;
  el_val v = method(f, "fit", *x);
  uint32_t n = v.k == V_TUPLE ? v.n : 1;
  if (v.k == V_ERROR)
    return false;
  if (n > LM_RANK)
    return EL_REJECT(f->c.e, f->c.x->loc, E407, f->ref.inst->decl->name.text, "fit", LM_RANK,
                     el_show(f->c.e, &v));
  for (uint32_t i = 0; i < n; i++)
    f->args[f->n++] = v.k == V_TUPLE ? v.items[i] : v;
  return true;
}

// The result of a method, which has the axes of x, in its order.
static el_val elementwise(fitted *f, const char *name, el_val first, el_kind kind,
                          const el_val *x) {
  el_val v = method(f, name, first);
  bool fits = v.k == V_TENSOR && v.kind == kind && el_axes_same(&v.axes, &x->axes);
  if (v.k == V_ERROR || fits)
    return v;
  el_val want = el_tensor(kind, &x->axes, NULL);
  lm_diag *d =
      EL_ERR(f->c.e, el_method_find(f->ref.inst, LM_SYM(f->c.e->c, name))->loc, E408,
             f->ref.inst->decl->name.text, name, el_show(f->c.e, &v), el_show(f->c.e, &want));
  lm_diag_note(f->c.e->c, d, f->c.x->loc, "used here");
  return el_error();
}

// y, or NaN where x is NaN. The cotangent is that of x: of all its elements, or of those inside of
// the range.
static el_val straight(fitted *f, const el_val *x, const el_val *split, const blocks *b, el_val y) {
  lm_builder *at = &f->c.e->b;
  bool limited = has_method(f->ref.inst->decl, "inside");
  el_val inside = limited ? elementwise(f, "inside", *split, K_BOOL, split) : *split;
  if (y.k == V_ERROR || inside.k == V_ERROR)
    return el_error();
  y = joined(f->c, &y, b, &x->axes);
  if (!x->v)
    return el_tensor(x->kind, &x->axes, NULL);
  lm_value *own = lm_emit1(at, LM_OP_STOP, x->v);
  lm_value *wide = lm_emit_cast(at, own, LM_F32);
  lm_value *v = lm_emit_cast(at, y.v, (lm_dtype)x->v->type.dtype);
  v = lm_emit_select(at, lm_emit2(at, LM_OP_EQ, wide, wide), v, own);
  lm_value *of = x->v;
  if (limited) {
    lm_value *outside = lm_emit1(at, LM_OP_STOP, of);
    of = lm_emit_select(at, joined(f->c, &inside, b, &x->axes).v, of, outside);
  }
  return el_tensor(x->kind, &x->axes, lm_emit2(at, LM_OP_STRAIGHT, v, of));
}

static el_val cast(el_call_site c, const el_val *x, const el_val *format, blocks *b) {
  fitted f = {
      .c = c,
      .ref = caller_of(c.e, format->ref.inst),
  };
  if (!blocks_find(c, x, format->ref.inst, b))
    return el_error();
  el_val own = *x;
  own.kind = K_F32;
  own.of = NULL;
  if (x->v)
    own.v = lm_emit_cast(&c.e->b, lm_emit1(&c.e->b, LM_OP_STOP, x->v), LM_F32);
  el_val split = divided(c, &own, b);
  if (!fit(&f, &split))
    return el_error();
  el_val code = method(&f, "encode", split);
  return straight(&f, x, &split, b, elementwise(&f, "decode", code, K_F32, &split));
}

el_val p_qcast(el_call_site c) {
  el_val x = el_arg_tensor(c, 0);
  el_val format = el_arg(c, 1);
  blocks b = {.over = x.axes};
  if (x.k == V_ERROR || format.k == V_ERROR || !el_floating(c, &x, el_arg_loc(c, 0)))
    return el_error();
  x = el_adapt(c.e, &x, K_F32, el_arg_loc(c, 0));
  c.of = (el_operands){{&x}, 1};
  if (el_positional(c, 2)) {
    b.over = (el_axes){0};
    if (!el_positional_axes(c, 2, &b.over))
      return el_error();
  }
  lm_loc at = el_arg_loc(c, 2);
  for (uint32_t i = 0; i < b.over.n; i++) {
    el_axis *axis = b.over.v[i];
    if (el_lacks(c, &x, axis, at))
      return el_error();
    if (el_moves_positions(c, axis, at))
      return el_error();
  }
  if (!c.e->m && format.k == V_NUM && !format.known)
    return el_tensor(x.kind, &x.axes, NULL); // a parameter of a block that is only checked
  if (!el_is_format(&format))
    return EL_FAIL(c.e, el_arg_loc(c, 1), E409, el_show(c.e, &format));
  if (!b.over.n)
    return EL_FAIL(c.e, c.x->loc, E40A, el_show(c.e, &x));
  return cast(c, &x, &format, &b);
}
