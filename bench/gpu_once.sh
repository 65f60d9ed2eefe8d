export PATH=$PATH:/usr/local/cuda/bin
timeout 170 python3 bench/rows.py --out $OUT/rows.json --compile 4096 16384 65536 > $OUT/rows.txt 2>&1; tail -3 $OUT/rows.txt
timeout 130 python3 -m pytest -q -p no:cacheprovider -n 15 tests/cuda/test_numbers.py -k "cross_entropy or l2_normalize or softmax_bwd_f64 or (numbers and default and (norm_bwd_bf16 or norm_bwd_f32 or kf_layer_norm_gelu_f16) and not batch)" > $OUT/numbers.txt 2>&1; tail -5 $OUT/numbers.txt
