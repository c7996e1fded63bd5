// nbody: bodies under gravity, all pairs, by tiles in shared memory.
//
// Positions and velocities stay on the device from round to round, four steps per
// round. After each round the CPU computes the same four steps from the round's
// initial state, so that a lost or changed state is found in the round where it
// happens. Tolerance 1e-4 relative plus 1e-5, since the device uses rsqrtf and fma.

#include "common/check.h"

#include <vector>

constexpr int tile = 64;
constexpr int steps = 4;
constexpr float step_seconds = 0.004f;
constexpr float softening = 0.01f;

__global__ void step(float4 *to, const float4 *from, float4 *velocity, int bodies) {
    __shared__ float4 shared[tile];
    int body = blockIdx.x * tile + threadIdx.x;
    float4 mine = from[min(body, bodies - 1)];
    float3 pull = {0, 0, 0};
    for (int start = 0; start < bodies; start += tile) {
        int other = start + threadIdx.x;
        shared[threadIdx.x] = other < bodies ? from[other] : make_float4(0, 0, 0, 0);
        __syncthreads();
#pragma unroll 4
        for (int at = 0; at < tile; ++at) {
            float4 there = shared[at];
            float dx = there.x - mine.x, dy = there.y - mine.y, dz = there.z - mine.z;
            float inverse = rsqrtf(dx * dx + dy * dy + dz * dz + softening);
            float factor = there.w * inverse * inverse * inverse;
            pull.x += dx * factor;
            pull.y += dy * factor;
            pull.z += dz * factor;
        }
        __syncthreads();
    }
    if (body < bodies) {
        float4 speed = velocity[body];
        speed.x += pull.x * step_seconds;
        speed.y += pull.y * step_seconds;
        speed.z += pull.z * step_seconds;
        velocity[body] = speed;
        to[body] = make_float4(mine.x + speed.x * step_seconds, mine.y + speed.y * step_seconds,
                               mine.z + speed.z * step_seconds, mine.w);
    }
}

static void step_on_cpu(std::vector<float4> &position, std::vector<float4> &velocity) {
    std::vector<float4> before = position;
    for (size_t body = 0; body < before.size(); ++body) {
        float4 mine = before[body];
        float x = 0, y = 0, z = 0;
        for (const float4 &there : before) {
            float dx = there.x - mine.x, dy = there.y - mine.y, dz = there.z - mine.z;
            float inverse = 1.0f / std::sqrt(dx * dx + dy * dy + dz * dz + softening);
            float factor = there.w * inverse * inverse * inverse;
            x += dx * factor;
            y += dy * factor;
            z += dz * factor;
        }
        float4 &speed = velocity[body];
        speed.x += x * step_seconds;
        speed.y += y * step_seconds;
        speed.z += z * step_seconds;
        position[body] = make_float4(mine.x + speed.x * step_seconds, mine.y + speed.y * step_seconds,
                                     mine.z + speed.z * step_seconds, mine.w);
    }
}

int main(int argc, char **argv) {
    Program program("nbody", "moves bodies under gravity", "bodies", 500, 1, 1 << 20);
    program.parse(argc, argv);
    int bodies = static_cast<int>(program.size());

    Random random(program.seed());
    std::vector<float4> position(bodies), velocity(bodies);
    for (int body = 0; body < bodies; ++body) {
        position[body] = make_float4(random.uniform(-1, 1), random.uniform(-1, 1), random.uniform(-1, 1),
                                     random.uniform(0.5f, 1.5f) / static_cast<float>(bodies));
        velocity[body] = make_float4(random.uniform(-1, 1), random.uniform(-1, 1), random.uniform(-1, 1), 0);
    }
    DeviceArray<float4> here(position.data(), bodies), there(bodies), speeds(velocity.data(), bodies);
    float4 *from = here.get(), *to = there.get();

    while (program.next_round()) {
        for (int at = 0; at < steps; ++at) {
            step<<<blocks_for(bodies, tile), tile>>>(to, from, speeds.get(), bodies);
            LAUNCH_CHECK();
            float4 *last = from;
            from = to;
            to = last;
        }
        for (int at = 0; program.verify() && at < steps; ++at) {
            step_on_cpu(position, velocity);
        }
        std::vector<float4> got(bodies), got_velocity(bodies);
        CUDA_CHECK(cudaMemcpy(got.data(), from, bodies * sizeof(float4), cudaMemcpyDeviceToHost));
        speeds.download(got_velocity.data());
        program.digest(got.data(), bodies * sizeof(float4));
        program.digest(got_velocity.data(), bodies * sizeof(float4));
        program.expect_near("the positions (4 a body)", &got[0].x, &position[0].x, 4 * size_t(bodies), 1e-4, 1e-5);
        program.expect_near("the velocities (4 a body)", &got_velocity[0].x, &velocity[0].x, 4 * size_t(bodies), 1e-4,
                            1e-5);
        position = got;
        velocity = got_velocity;
    }
    return program.finish();
}
