/* parser.y - the grammar of docs/language.md. It builds the tree of ast.h; dsl/elab and
   dsl/recipe check names and axes. After an error, layout.c skips the tokens up to the end of the
   statement, member, item or declaration, and parsing continues after them. */
%require "3.8"
%code requires { #include "dsl/syntax/parse.h" }
%code {
#define YYMALLOC lm_alloc
#define YYFREE lm_free
#define YYLLOC_DEFAULT(cur, rhs, n) ((cur) = (n) ? YYRHSLOC(rhs, 1) : YYRHSLOC(rhs, 0))
#define PUSH(list, x) (LM_PUSH(ps->ctx->arena, (list).v, (list).n, (list).cap) = (x))
#define BINARY(op, at, a, b) lm_expr_binary(ps, op, at, a, b)

static void yyerror(const lm_loc *at, lm_parser *ps, const char *text);
static ast_stmt *stmt_new(lm_parser *ps, ast_stmt_kind kind, lm_loc at, ast_names names,
                          ast_expr *expr);
static ast_member *member_new(lm_parser *ps, ast_member_kind kind, lm_loc at, ast_names names);
static void members_add(lm_parser *ps, ast_members *all, ast_member *m);
static ast_decl *decl_new(lm_parser *ps, ast_decl_kind kind, lm_loc at, const char *doc,
                          ast_name name);
static void bodies_forget(lm_parser *ps, ast_decl *d);
static ast_names one(lm_parser *ps, ast_name name);
static ast_sig sig_new(ast_params params, ast_type *ret, ast_exprs where);
static ast_type *type_new(lm_parser *ps, lm_loc at, lm_sym name);
static void import_path_add(lm_parser *ps, ast_decl *d, ast_name n);
}
%define api.pure full
%define api.prefix {lm_dsl_}
%define api.token.prefix {LM_TOKEN_}
%define api.value.type {union lm_dsl_value}
%define api.location.type {lm_loc}
%define parse.error custom
%define parse.lac full
%locations
%parse-param {lm_parser *ps}
%lex-param {lm_parser *ps}

%token START_FILE "a file" START_ITEM "an item"
%token <name> NAME "a name"
%token <name> ADD "'add'" EXTRA "'extra'" AFTER_STEP "'after_step'" // names elsewhere (layout.c)
%token <expr> STRING "a string" PATTERN "a pattern" NUMBER "a number" QUANTITY "a quantity"
%token <doc> IMPORT "'import'" FN "'fn'" BLOCK "'block'" MODEL "'model'"
%token <doc> OPTIMIZER "'optimizer'" FORMAT "'format'" DATA "'data'" RECIPE "'recipe'"
%token LET "'let'" RETURN "'return'" EMIT "'emit'" FOR "'for'" CARRY "'carry'"
%token DIM "'dim'" PARAM "'param'" STATE "'state'" SUB "'sub'" MAP "'map'"
%token EXTENDS "'extends'" FROM "'from'" WITH "'with'" WHERE "'where'" IF "'if'" THEN "'then'"
%token ELSE "'else'" IN "'in'" DIVIDES "'divides'" MOD "'mod'"
%token ARROW "'->'" DOTDOT "'..'" EQ "'=='" NE "'!='" LE "'<='" GE "'>='"
%token YYEOF 0 "the end of the input"
%precedence ELSE
%left '|'
%left '&'
%nonassoc EQ NE '<' '>' LE GE IN DIVIDES
%left '+' '-'
%left '*' '/' MOD
%precedence NEG
%right '^'

%type <decl> decl import_path
%type <names> names import_as lhs
%type <name> extends
%type <inst> inst
%type <items> with items
%type <sig> sig
%type <type> ret type
%type <exprs> where exprs
%type <params> params plist
%type <param> param
%type <types> types
%type <dims> dims dlist
%type <dim> dim
%type <members> members
%type <member> member binds
%type <body> body stmts
%type <stmt> stmt
%type <pat> pat
%type <item> item
%type <expr> sel expr primary
%type <args> args alist
%type <arg> arg
%%
start:
    START_FILE file
  | START_ITEM item ';'                  { ps->item = $2; }
  | START_ITEM error ';'                 { yyerrok; }
  ;
file:
    %empty
  | file decl ';'
      {
        if (lm_layout_take_unclosed(ps->layout))
          bodies_forget(ps, $2);
        PUSH(*ps->file, $2);
      }
  | file error ';'
      {
        yyerrok;
        lm_layout_take_unclosed(ps->layout);
        PUSH(*ps->file, decl_new(ps, DC_ERROR, @2, NULL, (ast_name){0}));
      }
  | file ';'
  ;
decl:
    IMPORT import_path import_as
      {
        $$ = $2;
        $$->loc = @1;
        $$->doc = $1;
        $$->names = $3;
      }
  | FN NAME sig body
      {
        $$ = decl_new(ps, DC_FN, @1, $1, $2);
        $$->sig = $3;
        $$->body = $4;
      }
  | BLOCK NAME '(' params ')' where '{' members '}'
      {
        $$ = decl_new(ps, DC_BLOCK, @1, $1, $2);
        $$->sig = sig_new($4, NULL, $6);
        $$->members = $8;
      }
  | MODEL NAME '(' params ')' where '{' members '}'
      {
        $$ = decl_new(ps, DC_MODEL, @1, $1, $2);
        $$->sig = sig_new($4, NULL, $6);
        $$->members = $8;
      }
  | MODEL NAME '=' inst with
      {
        $$ = decl_new(ps, DC_MODEL_INST, @1, $1, $2);
        $$->inst = $4.expr;
        $$->from = $4.from;
        $$->items = $5;
      }
  | OPTIMIZER NAME '(' params ')' where '{' members '}'
      {
        $$ = decl_new(ps, DC_OPTIMIZER, @1, $1, $2);
        $$->sig = sig_new($4, NULL, $6);
        $$->members = $8;
      }
  | FORMAT NAME '(' params ')' where '{' members '}'
      {
        $$ = decl_new(ps, DC_FORMAT, @1, $1, $2);
        $$->sig = sig_new($4, NULL, $6);
        $$->members = $8;
      }
  | DATA NAME extends '{' items '}'
      {
        $$ = decl_new(ps, DC_DATA, @1, $1, $2);
        $$->base = $3;
        $$->items = $5;
      }
  | RECIPE NAME extends '{' items '}'
      {
        $$ = decl_new(ps, DC_RECIPE, @1, $1, $2);
        $$->base = $3;
        $$->items = $5;
      }
  | LET pat '=' expr
      {
        $$ = decl_new(ps, DC_LET, @1, NULL, $2.names.v[0]);
        $$->let_names = $2.names;
        $$->let_tuple = $2.is_tuple;
        $$->let_expr = $4;
      }
  ;
import_path:
    STRING
      {
        $$ = decl_new(ps, DC_IMPORT, @1, NULL, (ast_name){$1->text, @1});
        $$->import_file = $1->text;
      }
  | NAME
      {
        $$ = decl_new(ps, DC_IMPORT, @1, NULL, $1);
        import_path_add(ps, $$, $1);
      }
  | import_path '.' NAME
      {
        $$ = $1;
        import_path_add(ps, $$, $3);
      }
  ;
import_as: %empty                        { $$ = (ast_names){0}; }
  | ':' names                            { $$ = $2; }
  ;
extends: %empty                          { $$ = (ast_name){0}; }
  | EXTENDS NAME                         { $$ = $2; }
  ;
inst: expr                               { $$ = (ast_inst){$1, NULL}; }
  | expr FROM expr                       { $$ = (ast_inst){$1, $3}; }
  ;
with: %empty                             { $$ = (ast_items){0}; }
  | WITH '{' items '}'                   { $$ = $3; }
  ;
sig: '(' params ')' ret where            { $$ = sig_new($2, $4, $5); }
  ;
ret: %empty                              { $$ = NULL; }
  | ARROW type                           { $$ = $2; }
  ;
where: %empty                            { $$ = (ast_exprs){0}; }
  | WHERE exprs                          { $$ = $2; }
  ;
params: %empty                           { $$ = (ast_params){0}; }
  | plist
  | plist ','
  ;
plist: param
      {
        $$ = (ast_params){0};
        PUSH($$, $1);
      }
  | plist ',' param
      {
        $$ = $1;
        PUSH($$, $3);
      }
  ;
param: NAME                              { $$ = (ast_param){$1, NULL, NULL}; }
  | NAME '=' expr                        { $$ = (ast_param){$1, NULL, $3}; }
  | NAME ':' type                        { $$ = (ast_param){$1, $3, NULL}; }
  | NAME ':' type '=' expr               { $$ = (ast_param){$1, $3, $5}; }
  ;
type: NAME                               { $$ = type_new(ps, @1, $1.text); }
  | NAME '[' dims ']'
      {
        $$ = type_new(ps, @1, $1.text);
        $$->has_dims = true;
        $$->dims = $3.v;
        $$->n_dims = $3.n;
        $$->cap_dims = $3.cap;
      }
  | '(' types ')'
      {
        $$ = type_new(ps, @1, NULL);
        $$->tuple = $2.v;
        $$->n_tuple = $2.n;
        $$->cap_tuple = $2.cap;
      }
  ;
types: type
      {
        $$ = (ast_types){0};
        PUSH($$, $1);
      }
  | types ',' type
      {
        $$ = $1;
        PUSH($$, $3);
      }
  ;
dims: %empty                             { $$ = (ast_dims){0}; }
  | dlist
  ;
dlist: dim
      {
        $$ = (ast_dims){0};
        PUSH($$, $1);
      }
  | dlist ',' dim
      {
        $$ = $1;
        PUSH($$, $3);
      }
  ;
dim: expr                                { $$ = (ast_dim){@1, NULL, $1}; }
  | DOTDOT NAME                          { $$ = (ast_dim){@1, $2.text, NULL}; }
  ;
members: %empty                          { $$ = (ast_members){0}; }
  | members member ';'
      {
        $$ = $1;
        members_add(ps, &$$, $2);
      }
  | members error ';'
      {
        yyerrok;
        $$ = $1;
        PUSH($$, member_new(ps, MB_ERROR, @2, (ast_names){0}));
      }
  | members ';'
  ;
member: DIM binds
      {
        $$ = $2;
        $$->loc = @1;
      }
  | PARAM names ':' type '=' expr
      {
        $$ = member_new(ps, MB_PARAM, @1, $2);
        $$->type = $4;
        $$->init = $6;
      }
  | STATE names ':' type '=' expr
      {
        $$ = member_new(ps, MB_STATE, @1, $2);
        $$->type = $4;
        $$->init = $6;
      }
  | SUB names '=' inst
      {
        $$ = member_new(ps, MB_SUB, @1, $2);
        $$->init = $4.expr;
        $$->from = $4.from;
      }
  | SUB NAME '[' NAME '<' expr ']' '=' inst
      {
        $$ = member_new(ps, MB_SUB, @1, one(ps, $2));
        $$->index = $4;
        $$->count = $6;
        $$->init = $9.expr;
        $$->from = $9.from;
      }
  | MAP NAME '{' items '}'
      {
        $$ = member_new(ps, MB_MAP, @1, one(ps, $2));
        $$->items = $4;
      }
  | NAME sig body
      {
        $$ = member_new(ps, MB_METHOD, @1, one(ps, $1));
        $$->sig = $2;
        $$->body = $3;
      }
  | AFTER_STEP body
      {
        $$ = member_new(ps, MB_AFTER, @1, one(ps, $1));
        $$->body = $2;
      }
  | EXTRA NAME '=' expr
      {
        $$ = member_new(ps, MB_EXTRA, @1, one(ps, $2));
        $$->init = $4;
      }
  ;
binds: NAME '=' expr
      {
        $$ = member_new(ps, MB_DIM, @1, one(ps, $1));
        PUSH($$->exprs, $3);
      }
  | binds ',' NAME '=' expr
      {
        $$ = $1;
        PUSH($$->names, $3);
        PUSH($$->exprs, $5);
      }
  ;
names: NAME                              { $$ = one(ps, $1); }
  | names ',' NAME
      {
        $$ = $1;
        PUSH($$, $3);
      }
  ;
body: '{' stmts '}'
      {
        $$ = $2;
        $$.open = @1;
        $$.close = @3;
      }
  ;
stmts: %empty                            { $$ = (ast_body){0}; }
  | stmts stmt ';'
      {
        $$ = $1;
        PUSH($$, $2);
      }
  | stmts error ';'
      {
        yyerrok;
        $$ = $1;
        PUSH($$, stmt_new(ps, ST_ERROR, @2, (ast_names){0}, NULL));
      }
  | stmts ';'
  ;
stmt: LET pat '=' expr
      {
        $$ = stmt_new(ps, ST_LET, @1, $2.names, $4);
        $$->is_tuple = $2.is_tuple;
      }
  | NAME '=' expr                        { $$ = stmt_new(ps, ST_SET, @1, one(ps, $1), $3); }
  | ADD NAME '=' expr                    { $$ = stmt_new(ps, ST_ADD, @1, one(ps, $2), $4); }
  | RETURN expr                          { $$ = stmt_new(ps, ST_RETURN, @1, (ast_names){0}, $2); }
  | EMIT NAME '=' expr                   { $$ = stmt_new(ps, ST_EMIT, @1, one(ps, $2), $4); }
  | FOR NAME IN expr CARRY names body
      {
        $$ = stmt_new(ps, ST_FOR, @1, one(ps, $2), $4);
        $$->carry = $6;
        $$->body = $7;
      }
  ;
pat: NAME                                { $$ = (ast_pat){one(ps, $1), false}; }
  | '(' names ')'                        { $$ = (ast_pat){$2, true}; }
  ;
items: %empty                            { $$ = (ast_items){0}; }
  | items item ';'
      {
        $$ = $1;
        PUSH($$, $2);
      }
  | items error ';'
      {
        yyerrok;
        $$ = $1;
        PUSH($$, lm_item_new(ps, IT_ERROR, (ast_name){NULL, @2}));
      }
  | items ';'
  ;
item: lhs '=' expr
      {
        $$ = lm_item_new(ps, IT_SET, $1.v[0]);
        $$->path = $1;
        $$->expr = $3;
      }
  | NAME sel '=' expr
      {
        $$ = lm_item_new(ps, IT_SET_SEL, $1);
        $$->sel = $2;
        $$->expr = $4;
      }
  | NAME sel
      {
        $$ = lm_item_new(ps, IT_DO, $1);
        $$->sel = $2;
      }
  | NAME sel '(' args ')'
      {
        lm_args_check_order(ps, &$4);
        $$ = lm_item_new(ps, IT_CALL, $1);
        $$->sel = $2;
        $$->args = $4.v;
        $$->n_args = $4.n;
        $$->cap_args = $4.cap;
      }
  | NAME '{' items '}'
      {
        $$ = lm_item_new(ps, IT_SECTION, $1);
        $$->items = $3;
      }
  | NAME sel '{' items '}'
      {
        $$ = lm_item_new(ps, IT_SECTION_SEL, $1);
        $$->sel = $2;
        $$->items = $4;
      }
  | PATTERN '=' expr
      {
        $$ = lm_item_new(ps, IT_MAP, (ast_name){NULL, @1});
        $$->sel = $1;
        $$->expr = $3;
      }
  ;
sel: NAME
      {
        $$ = lm_expr_new(ps, EX_NAME, @1);
        $$->text = $1.text;
      }
  | PATTERN
  | QUANTITY
  ;
lhs: NAME                                { $$ = one(ps, $1); }
  | lhs '.' NAME
      {
        $$ = $1;
        PUSH($$, $3);
      }
  ;
exprs: expr
      {
        $$ = (ast_exprs){0};
        PUSH($$, $1);
      }
  | exprs ',' expr
      {
        $$ = $1;
        PUSH($$, $3);
      }
  ;
expr: primary
  | '-' expr %prec NEG
      { $$ = lm_expr_postfix(ps, EX_NEG, @1, $2, (ast_args){0}); }
  | expr '+' expr                        { $$ = BINARY(OP_ADD, @2, $1, $3); }
  | expr '-' expr                        { $$ = BINARY(OP_SUB, @2, $1, $3); }
  | expr '*' expr                        { $$ = BINARY(OP_MUL, @2, $1, $3); }
  | expr '/' expr                        { $$ = BINARY(OP_DIV, @2, $1, $3); }
  | expr MOD expr                        { $$ = BINARY(OP_MOD, @2, $1, $3); }
  | expr '^' expr                        { $$ = BINARY(OP_POW, @2, $1, $3); }
  | expr '&' expr                        { $$ = BINARY(OP_AND, @2, $1, $3); }
  | expr '|' expr                        { $$ = BINARY(OP_OR, @2, $1, $3); }
  | expr EQ expr                         { $$ = BINARY(OP_EQ, @2, $1, $3); }
  | expr NE expr                         { $$ = BINARY(OP_NE, @2, $1, $3); }
  | expr '<' expr                        { $$ = BINARY(OP_LT, @2, $1, $3); }
  | expr '>' expr                        { $$ = BINARY(OP_GT, @2, $1, $3); }
  | expr LE expr                         { $$ = BINARY(OP_LE, @2, $1, $3); }
  | expr GE expr                         { $$ = BINARY(OP_GE, @2, $1, $3); }
  | expr IN expr                         { $$ = BINARY(OP_IN, @2, $1, $3); }
  | expr DIVIDES expr                    { $$ = BINARY(OP_DIVIDES, @2, $1, $3); }
  | IF expr THEN expr ELSE expr
      {
        $$ = lm_expr_new(ps, EX_IF, @1);
        $$->c = $2;
        $$->a = $4;
        $$->b = $6;
        $$ = lm_expr_seal(ps, $$);
      }
  ;
primary: NAME
      {
        $$ = lm_expr_new(ps, EX_NAME, @1);
        $$->text = $1.text;
      }
  | NUMBER
  | QUANTITY
  | STRING
  | PATTERN
  | '(' args ')'                         { $$ = lm_expr_group(ps, EX_TUPLE, @1, $2); }
  | '[' args ']'                         { $$ = lm_expr_group(ps, EX_LIST, @1, $2); }
  | primary '(' args ')'                 { $$ = lm_expr_postfix(ps, EX_CALL, $1->loc, $1, $3); }
  | primary '[' args ']'                 { $$ = lm_expr_postfix(ps, EX_INDEX, $1->loc, $1, $3); }
  | primary '.' NAME
      {
        $$ = lm_expr_postfix(ps, EX_FIELD, @3, $1, (ast_args){0});
        $$->text = $3.text;
      }
  ;
args: %empty                             { $$ = (ast_args){0}; }
  | alist
  | alist ','
      {
        $$ = $1;
        $$.trailing_comma = true;
      }
  ;
alist: arg
      {
        $$ = (ast_args){0};
        PUSH($$, $1);
      }
  | alist ',' arg
      {
        $$ = $1;
        PUSH($$, $3);
      }
  ;
arg: expr                                { $$ = (ast_arg){ARG_POS, $1->loc, NULL, {0}, $1, NULL}; }
  | NAME '=' expr                        { $$ = (ast_arg){ARG_NAMED, @1, $1.text, @1, $3, NULL}; }
  | expr ARROW expr                      { $$ = (ast_arg){ARG_ARROW, $1->loc, NULL, {0}, $1, $3}; }
  | DOTDOT NAME                          { $$ = (ast_arg){ARG_ROW, @1, $2.text, @2, NULL, NULL}; }
  ;
%%
// ---- nodes

static ast_names one(lm_parser *ps, ast_name name) {
  ast_names n = {0};
  PUSH(n, name);
  return n;
}

static ast_stmt *stmt_new(lm_parser *ps, ast_stmt_kind kind, lm_loc at, ast_names names,
                          ast_expr *expr) {
  ast_stmt *s = LM_NEW(ps->ctx->arena, ast_stmt);
  s->kind = kind;
  s->loc = at;
  s->names = names;
  s->expr = expr;
  return s;
}

static ast_member *member_new(lm_parser *ps, ast_member_kind kind, lm_loc at, ast_names names) {
  ast_member *m = LM_NEW(ps->ctx->arena, ast_member);
  m->kind = kind;
  m->loc = at;
  m->names = names;
  return m;
}

// `sub a, b = A()` declares a member for each name.
static void members_add(lm_parser *ps, ast_members *all, ast_member *m) {
  if (m->kind != MB_SUB || m->names.n == 1) {
    PUSH(*all, m);
    return;
  }
  for (uint32_t i = 0; i < m->names.n; i++) {
    ast_member *sub = member_new(ps, MB_SUB, m->names.v[i].loc, one(ps, m->names.v[i]));
    sub->init = m->init;
    sub->from = m->from;
    PUSH(*all, sub);
  }
}
static ast_decl *decl_new(lm_parser *ps, ast_decl_kind kind, lm_loc at, const char *doc,
                          ast_name name) {
  ast_decl *d = LM_NEW(ps->ctx->arena, ast_decl);
  d->kind = kind;
  d->loc = at;
  d->doc = doc;
  d->name = name;
  return d;
}

// A brace of d is never closed, so that statements may be in another body than is meant.
static void bodies_forget(lm_parser *ps, ast_decl *d) {
  for (uint32_t i = 0; i < d->members.n; i++)
    if (d->members.v[i]->body.n)
      d->members.v[i]->kind = MB_ERROR;
  if (d->kind != DC_FN)
    return;
  d->body.n = 0;
  PUSH(d->body, stmt_new(ps, ST_ERROR, d->loc, (ast_names){0}, NULL));
}

static ast_type *type_new(lm_parser *ps, lm_loc at, lm_sym name) {
  ast_type *t = LM_NEW(ps->ctx->arena, ast_type);
  t->loc = at;
  t->name = name;
  return t;
}

static ast_sig sig_new(ast_params params, ast_type *ret, ast_exprs where) {
  return (ast_sig){params.v, params.n, params.cap, ret, where};
}

static void import_path_add(lm_parser *ps, ast_decl *d, ast_name n) {
  if (d->import_file)
    lm_diag_help(ps->ctx,
                 LM_REPORT(ps->ctx, n.loc, E013),
                 "write the whole path inside the quotes");
  else
    PUSH(d->import_path, n);
}

// ---- errors

static int yyreport_syntax_error(const yypcontext_t *at, lm_parser *ps) {
  yysymbol_kind_t kinds[LM_MAX_TOKENS];
  _Static_assert(YYNTOKENS <= LM_MAX_TOKENS, "the expected tokens fit in the array");
  lm_expected expected = {.n = yypcontext_expected_tokens(at, kinds, LM_MAX_TOKENS)};
  for (int i = 0; i < expected.n; i++)
    expected.v[i] = yysymbol_name(kinds[i]);
  lm_syntax_error(ps, *yypcontext_location(at), yysymbol_name(yypcontext_token(at)), &expected);
  lm_layout_recover(ps->layout);
  return 0;
}

// Called only if the parser's stack overflows.
static void yyerror(const lm_loc *at, lm_parser *ps, const char *text) {
  if (!lm_layout_stopped(ps->layout))
    LM_REPORT(ps->ctx, *at, E00B, text);
}
