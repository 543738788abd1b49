" Syntax of .lm files.
if exists("b:current_syntax")
  finish
endif

syn match lmOperator "->\|\.\.\|==\|!=\|<=\|>=\|[-+*/^&|<>=]"
syn match lmName "\h\w*"
syn match lmCall "\h\w*\ze("
" The keywords of declarations are matched at the start of a line; inside braces they are names.
syn match lmDeclaration "^\s*\%(import\|fn\|block\|model\|optimizer\|format\|data\|recipe\)\>\ze\s\+[A-Za-z_\"]"
syn keyword lmKeyword let return emit for dim param state sub map extends from with where carry after_step
syn keyword lmConditional if then else
syn keyword lmWordOperator in divides mod
syn keyword lmType real f32 bf16 f16 int bool axis Batch
syn match lmNumber "\<\d[0-9_]*\%(\.\d\+\)\?\%([eE][-+]\?\d\+\)\?\%([kMBT]\|[KMGT]i\)\?\>"
syn match lmQuantity "\<\d[0-9_]*\%(\.\d\+\)\?\%([eE][-+]\?\d\+\)\?\%(%\|\s*[kMGT]i\?B\>\|\%([kMBT]\|[KMGT]i\)\?\s\+\%(tokens\?\|steps\?\|epochs\?\|docs\?\|seqs\?\|bytes\?\|ms\|s\|min\|hours\?\)\>\)"
syn match lmPattern "@\%([A-Za-z0-9_.*#]\|{[A-Za-z0-9_.*#, ]*}\)\+"
syn match lmEscape contained "\\\%([nrt\\\"]\|u{\x\+}\)"
syn region lmString start=+"+ skip=+\\.+ end=+"+ oneline contains=lmEscape
syn keyword lmTodo contained TODO FIXME XXX
syn match lmComment "#.*$" contains=lmTodo,@Spell

hi def link lmOperator Operator
hi def link lmWordOperator Operator
hi def link lmCall Function
hi def link lmDeclaration Structure
hi def link lmKeyword Statement
hi def link lmConditional Conditional
hi def link lmType Type
hi def link lmNumber Number
hi def link lmQuantity Number
hi def link lmPattern Special
hi def link lmEscape SpecialChar
hi def link lmString String
hi def link lmTodo Todo
hi def link lmComment Comment

setlocal commentstring=#\ %s shiftwidth=2 expandtab
let b:current_syntax = "lm"
