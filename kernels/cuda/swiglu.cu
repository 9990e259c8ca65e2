/* SwiGLU: out = silu(gate) up, silu(g) = g s with s = 1 / (1 + e^-g).
 * d silu / d g = s (1 + g (1 - s)). */
#include "kernels/cuda/device.cuh"

template <class T> __device__ static float sigmoid(float g)
{
    return inverse_for<T>(1.0f + exp_for<T>(-g));
}

template <class T> struct forward_op {
    rows_of<T> out;
    rows_of<const T> gate, up;

    template <int V> struct in {
        vec<T, V> gate, up;
    };
    template <int V> __device__ in<V> load(int64_t row, int64_t column) const
    {
        return {::load<T, V>(gate.at(row) + column), ::load<T, V>(up.at(row) + column)};
    }
    template <int V> __device__ void store(int64_t row, int64_t column, in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            float g = f32(x.gate.x[j]);
            x.up.x[j] = rounded<T>(g * sigmoid<T>(g) * f32(x.up.x[j]));
        }
        ::store(out.at(row) + column, x.up);
    }
};

template <class T> struct backward_op {
    rows_of<T> dgate, dup;
    rows_of<const T> dout, gate, up;

    template <int V> struct in {
        vec<T, V> dout, gate, up;
    };
    template <int V> __device__ in<V> load(int64_t row, int64_t column) const
    {
        return {::load<T, V>(dout.at(row) + column), ::load<T, V>(gate.at(row) + column),
                ::load<T, V>(up.at(row) + column)};
    }
    template <int V> __device__ void store(int64_t row, int64_t column, in<V> &x) const
    {
#pragma unroll
        for (int j = 0; j < V; j++) {
            float g = f32(x.gate.x[j]), d = f32(x.dout.x[j]), u = f32(x.up.x[j]);
            float s = sigmoid<T>(g);
            x.gate.x[j] = rounded<T>(d * u * s * (1.0f + g * (1.0f - s)));
            x.up.x[j] = rounded<T>(d * g * s);
        }
        ::store(dgate.at(row) + column, x.gate);
        ::store(dup.at(row) + column, x.up);
    }
};

static void assert_alike(const struct tensor *a, const struct tensor *b)
{
    assert_compute(b, 2);
    assert(a->dtype == b->dtype && same_shape(a, b));
    (void)a, (void)b;
}

void cuda_swiglu_forward(struct kernel_queue *q, struct tensor out, struct tensor gate,
                         struct tensor up)
{
    assert_alike(&out, &gate);
    assert_alike(&out, &up);
    bool wide = is_wide(&out) && is_wide(&gate) && is_wide(&up);
    with_compute(out.dtype, [&](auto t) {
        using T = decltype(t);
        forward_op<T> op = {rows_in<T>(&out), rows_in<const T>(&gate), rows_in<const T>(&up)};
        each(q, op, out.shape[0], out.shape[1], wide, "swiglu_forward");
    });
}

void cuda_swiglu_backward(struct kernel_queue *q, struct tensor dgate, struct tensor dup,
                          struct tensor dout, struct tensor gate, struct tensor up)
{
    assert_alike(&gate, &dgate);
    assert_alike(&gate, &dup);
    assert_alike(&gate, &dout);
    assert_alike(&gate, &up);
    bool wide =
        is_wide(&dgate) && is_wide(&dup) && is_wide(&dout) && is_wide(&gate) && is_wide(&up);
    with_compute(gate.dtype, [&](auto t) {
        using T = decltype(t);
        backward_op<T> op = {rows_in<T>(&dgate), rows_in<T>(&dup), rows_in<const T>(&dout),
                             rows_in<const T>(&gate), rows_in<const T>(&up)};
        each(q, op, gate.shape[0], gate.shape[1], wide, "swiglu_backward");
    });
}
