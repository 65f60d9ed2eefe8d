/* SPDX-License-Identifier: Apache-2.0 */
/* The ops of the demo, included once per dtype. Each runs fused, as a user calls it, and as the
 * unfused passes, which exchange an intermediate tensor. */
// clang-format off
#define PASTE_(a, b) a##b
#define PASTE(a, b) PASTE_(a, b)
#define TEXT_(a) #a
#define TEXT(a) TEXT_(a)
#define CALL_(name, dtype, ...) CALL(name, dtype, __VA_ARGS__)
#define WORKSPACE_BYTES_(name, dtype, ...) WORKSPACE_BYTES(name, dtype, __VA_ARGS__)
#define KF(name, ...) must(CALL_(name, DTYPE, __VA_ARGS__))
#define P(t) ((T *)(t).device)
#define V(t, i) value((t).host, IS_BF16, i)

/* Times both forms alternately, runs the fused one into poisoned outputs, then checks. */
#define OP(name, fused, checks, ...)                                                \
    do {                                                                            \
        double fused_ms[RUNS], passes_ms[RUNS], error = 0;                          \
        for (int r = -1; r < RUNS; ++r) { /* the first run warms up */              \
            timer_start();                                                          \
            __VA_ARGS__;                                                            \
            passes_ms[r < 0 ? 0 : r] = timer_stop();                                \
            timer_start();                                                          \
            fused;                                                                  \
            fused_ms[r < 0 ? 0 : r] = timer_stop();                                 \
        }                                                                           \
        poison(out), poison(out2), poison(dbias);                                   \
        fused;                                                                      \
        fetch(out), fetch(out2), fetch(dbias);                                      \
        checks;                                                                     \
        row(name, TEXT(DTYPE), median(fused_ms), median(passes_ms), error, BOUND);  \
    } while (0)

/* Compares about four million elements, at a stride that covers every position in a vector. */
#define CHECK(t, reference) \
    for (int64_t i = 0; i < n; i += (n >> 22) | 1) error = worse(error, V(t, i), reference)

static void PASTE(demo_, DTYPE)(void)
{
    const int64_t rows = ROWS, cols = COLS, n = rows * cols;
    const float p = 0.1f, eps = 1e-5f;
    const uint64_t seed = 42, offset = 7;
    const size_t bytes = WORKSPACE_BYTES_(bias_gelu_bwd, DTYPE, rows, cols);
    tensor x = make(n, IS_BF16, -4, 8), y = make(n, IS_BF16, -4, 8);
    tensor bias = make(cols, IS_BF16, -1, 2), dbias = make(cols, IS_BF16, 0, 0);
    tensor mid = make(n, IS_BF16, 0, 0), out = make(n, IS_BF16, 0, 0);
    tensor out2 = make(n, IS_BF16, 0, 0), work = make((int64_t)bytes / 4 + 1, 0, 0, 0);
    tensor mean = make(cols, 0, -1, 2), var = make(cols, 0, 0.5f, 1);
    tensor weight = make(cols, 0, -1, 2), shift = make(cols, 0, -1, 2);

    OP("add_relu", KF(add_relu, P(x), P(y), P(out), n),
       CHECK(out, relu(V(x, i) + V(y, i))),
       KF(add, P(x), P(y), P(mid), n); KF(relu, P(mid), P(out), n));

    OP("silu_mul", KF(silu_mul, P(x), P(y), P(out), n),
       CHECK(out, silu(V(x, i)) * V(y, i)),
       KF(silu, P(x), P(mid), n); KF(mul, P(mid), P(y), P(out), n));

    OP("bias_gelu", KF(bias_gelu, P(x), P(bias), P(out), rows, cols),
       CHECK(out, gelu(V(x, i) + V(bias, i % cols))),
       KF(bias, P(x), P(bias), P(mid), rows, cols); KF(gelu, P(mid), P(out), n));

    OP("gelu_dropout", KF(gelu_dropout, P(x), P(out), n, p, seed, offset),
       CHECK(out, dropout(gelu(V(x, i)), i, p, seed, offset)),
       KF(gelu, P(x), P(mid), n); KF(dropout, P(mid), P(out), n, p, seed, offset));

    OP("bias_dropout_add",
       KF(bias_dropout_add, P(x), P(bias), P(y), P(out), rows, cols, p, seed, offset),
       CHECK(out, dropout(V(x, i) + V(bias, i % cols), i, p, seed, offset) + V(y, i)),
       KF(bias, P(x), P(bias), P(mid), rows, cols);
       KF(dropout, P(mid), P(out2), n, p, seed, offset);
       KF(add, P(out2), P(y), P(out), n));

#define F(t) ((const float *)(t).device) /* float32, whatever the dtype of x */
#define C(t) value((t).host, 0, i % cols)
    OP("batch_norm_relu",
       KF(batch_norm_relu, P(x), F(mean), F(var), F(weight), F(shift), P(out), rows, cols, 1, eps),
       CHECK(out, relu((V(x, i) - C(mean)) / sqrt(C(var) + eps) * C(weight) + C(shift))),
       KF(batch_norm, P(x), F(mean), F(var), F(weight), F(shift), P(mid), rows, cols, 1, eps);
       KF(relu, P(mid), P(out), n));
#undef F
#undef C

    /* Backward: y is the gradient of the result. The NULL before it is the result, which these
       functions do not read. The passes read the intermediate tensor that their forward saved. */
    KF(silu, P(x), P(mid), n);
    OP("silu_mul_bwd", KF(silu_mul_bwd, P(x), P(x), P(y), P(out), P(out2), n, NULL, 0),
       CHECK(out, V(y, i) * V(x, i) * silu_slope(V(x, i))); CHECK(out2, V(y, i) * silu(V(x, i))),
       KF(mul_bwd, P(mid), P(x), NULL, P(y), P(out), P(out2), n, NULL, 0);
       KF(silu_bwd, P(x), NULL, P(out), P(out), n, NULL, 0));

#define SLOPE(i) gelu_slope(V(x, i) + V(bias, (i) % cols))
    /* The fused form may take longer in bf16 on a CPU, where arithmetic bounds both: it computes
       x + bias again, which the passes read, rounded, from the tensor that their forward saved.
       Memory bounds both on a GPU (bench/NOTES/elementwise.md). */
    KF(bias, P(x), P(bias), P(mid), rows, cols);
    OP("bias_gelu_bwd",
       KF(bias_gelu_bwd, P(x), P(bias), NULL, P(y), P(out), P(dbias), rows, cols, work.device,
          bytes),
       CHECK(out, V(y, i) * SLOPE(i));
       /* The error of a sum is relative to the size of its terms. */
       for (int64_t j = 0; j < cols; j += 61) {
           double sum = 0;
           double size = 0;
           for (int64_t i = j; i < n; i += cols) sum += V(y, i) * SLOPE(i);
           for (int64_t i = j; i < n; i += cols) size += fabs(V(y, i) * SLOPE(i));
           error = worse(error, V(dbias, j) / size, sum / size);
       },
       KF(gelu_bwd, P(mid), NULL, P(y), P(out), n, NULL, 0);
       KF(bias_bwd, P(x), P(bias), NULL, P(out), NULL, P(dbias), rows, cols, work.device, bytes));
#undef SLOPE

    tensor *all[] = {&x, &y, &bias, &dbias, &mid, &out, &out2, &work, &mean, &var, &weight, &shift};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) drop(*all[i]);
}

#undef PASTE_
#undef PASTE
#undef TEXT_
#undef TEXT
#undef CALL_
#undef WORKSPACE_BYTES_
#undef KF
#undef P
#undef V
#undef OP
#undef CHECK
