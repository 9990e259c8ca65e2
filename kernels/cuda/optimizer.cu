/* AdamW (Loshchilov and Hutter, arXiv 1711.05101) over fp32 master weights and moments; the weights
 * that the model computes with are written in the same pass. */
#include <math.h>

#include "kernels/cuda/device.cuh"

struct coefficients {
    float grad_scale, beta1, beta2, eps;
    float decay;  /* lr weight_decay */
    float step;   /* lr / (1 - beta1^t) */
    float root_v; /* 1 / sqrt(1 - beta2^t) */
};

template <class G> struct adamw_op {
    float *param, *m, *v;
    const G *grad;
    bf16 *copy; /* may be NULL */
    coefficients c;

    template <int V> struct in {
        vec<float, V> param, m, v;
        vec<G, V> grad;
    };
    template <int V> __device__ in<V> load(int64_t, int64_t at) const
    {
        return {::load<float, V>(param + at), ::load<float, V>(m + at), ::load<float, V>(v + at),
                ::load<G, V>(grad + at)};
    }
    template <int V> __device__ void store(int64_t, int64_t at, in<V> &x) const
    {
        vec<bf16, V> rounded_param;
#pragma unroll
        for (int j = 0; j < V; j++) {
            float g = f32(x.grad.x[j]) * c.grad_scale;
            float m1 = c.beta1 * x.m.x[j] + (1.0f - c.beta1) * g;
            float v1 = c.beta2 * x.v.x[j] + (1.0f - c.beta2) * g * g;
            x.m.x[j] = m1;
            x.v.x[j] = v1;
            x.param.x[j] -= c.decay * x.param.x[j] + c.step * m1 / (sqrtf(v1) * c.root_v + c.eps);
            rounded_param.x[j] = rounded<bf16>(x.param.x[j]);
        }
        ::store(m + at, x.m);
        ::store(v + at, x.v);
        ::store(param + at, x.param);
        if (copy)
            ::store(copy + at, rounded_param);
    }
};

void cuda_adamw(struct kernel_queue *q, struct tensor param, struct tensor m, struct tensor v,
                struct tensor grad, struct tensor copy, const struct adamw *options)
{
    assert_dtype(&param, 1, DTYPE_F32);
    assert_dtype(&m, 1, DTYPE_F32);
    assert_dtype(&v, 1, DTYPE_F32);
    assert_compute(&grad, 1);
    assert(same_shape(&m, &param) && same_shape(&v, &param) && same_shape(&grad, &param));
    assert(options->step >= 1);
    bool wide = is_wide(&param) && is_wide(&m) && is_wide(&v) && is_wide(&grad);
    if (copy.data) {
        assert_dtype(&copy, 1, DTYPE_BF16);
        assert(same_shape(&copy, &param));
        wide = wide && is_wide(&copy);
    }
    double t = (double)options->step;
    coefficients c = {options->grad_scale,
                      options->beta1,
                      options->beta2,
                      options->eps,
                      options->lr * options->weight_decay,
                      (float)(options->lr / (1.0 - pow(options->beta1, t))),
                      (float)(1.0 / sqrt(1.0 - pow(options->beta2, t)))};
    with_compute(grad.dtype, [&](auto g) {
        using G = decltype(g);
        adamw_op<G> op = {(float *)param.data,  (float *)m.data,   (float *)v.data,
                          (const G *)grad.data, (bf16 *)copy.data, c};
        each(q, op, 1, param.shape[0], wide, "adamw");
    });
}
