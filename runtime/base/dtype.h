// dtype.h - types of elements and kinds of initialisers: what IR and plans both number.
#ifndef LM_DTYPE_H
#define LM_DTYPE_H
typedef enum { LM_F32, LM_BF16, LM_F64, LM_INT /* 32 bits */, LM_BOOL, LM_DTYPES } lm_dtype;

typedef enum { LM_INIT_ZEROS, LM_INIT_ONES, LM_INIT_CONST, LM_INIT_NORMAL, LM_INIT_UNIFORM } lm_init_kind;
typedef struct lm_init { lm_init_kind kind; double a, b; } lm_init;   // normal: a = std; uniform: [a, b); const: a
#endif
