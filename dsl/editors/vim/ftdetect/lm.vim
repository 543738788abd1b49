autocmd BufNewFile,BufRead *.lm setfiletype lm
