// blackScholes: prices European calls and puts by the closed formula.
//
// float on the device against double on the CPU: 1e-5 relative plus 2e-4
// absolute at prices up to 100, for the few units in the last place of logf and
// expf and the cancellation between the two terms.

#include "common/check.h"

#include <vector>

constexpr float riskless = 0.02f;
constexpr float volatility = 0.30f;

// The cumulative normal distribution after Abramowitz and Stegun 26.2.17.
template <typename T> __host__ __device__ T cumulative_normal(T d) {
    const T a1 = T(0.31938153), a2 = T(-0.356563782), a3 = T(1.781477937), a4 = T(-1.821255978), a5 = T(1.330274429);
    T k = T(1) / (T(1) + T(0.2316419) * fabs(d));
    T tail = T(0.39894228040143267794) * exp(T(-0.5) * d * d) * (k * (a1 + k * (a2 + k * (a3 + k * (a4 + k * a5)))));
    return d > 0 ? T(1) - tail : tail;
}

template <typename T> __host__ __device__ void price(T stock, T strike, T years, T *call, T *put) {
    T root = sqrt(years);
    T d1 = (log(stock / strike) + (T(riskless) + T(0.5) * T(volatility) * T(volatility)) * years) /
           (T(volatility) * root);
    T d2 = d1 - T(volatility) * root;
    T discount = exp(-T(riskless) * years);
    T n1 = cumulative_normal(d1), n2 = cumulative_normal(d2);
    *call = stock * n1 - strike * discount * n2;
    *put = strike * discount * (T(1) - n2) - stock * (T(1) - n1);
}

__global__ void price_all(const float *stock, const float *strike, const float *years, float *call, float *put,
                          int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) {
        price<float>(stock[at], strike[at], years[at], &call[at], &put[at]);
    }
}

int main(int argc, char **argv) {
    Program program("blackScholes", "prices European options", "options", 60000, 1, 1L << 28);
    program.parse(argc, argv);
    int count = static_cast<int>(program.size());

    Random random(program.seed());
    std::vector<float> stock(count), strike(count), years(count), call(count), put(count);
    std::vector<float> want_call(count), want_put(count);
    for (int at = 0; at < count; ++at) {
        stock[at] = random.uniform(5, 30);
        strike[at] = random.uniform(1, 100);
        years[at] = random.uniform(0.25f, 10);
        if (program.verify()) {
            double exact_call, exact_put;
            price<double>(stock[at], strike[at], years[at], &exact_call, &exact_put);
            want_call[at] = static_cast<float>(exact_call);
            want_put[at] = static_cast<float>(exact_put);
        }
    }
    DeviceArray<float> device_stock(stock.data(), count), device_strike(strike.data(), count),
        device_years(years.data(), count), device_call(count), device_put(count);

    while (program.next_round()) {
        device_call.spoil();
        device_put.spoil();
        price_all<<<blocks_for(count, 128), 128>>>(device_stock.get(), device_strike.get(), device_years.get(),
                                                   device_call.get(), device_put.get(), count);
        LAUNCH_CHECK();
        device_call.download(call.data());
        device_put.download(put.data());
        program.digest(call.data(), count * sizeof(float));
        program.digest(put.data(), count * sizeof(float));
        program.expect_near("the calls", call.data(), want_call.data(), count, 1e-5, 2e-4);
        program.expect_near("the puts", put.data(), want_put.data(), count, 1e-5, 2e-4);
    }
    return program.finish();
}
