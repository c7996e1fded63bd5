// copies: 1D, 2D and 3D copies and fills among all kinds of memory.
//
// Every round generates random operations with odd sizes, offsets and pitches, and
// executes them on the device and on a CPU mirror. Then all memory is compared in
// full, so that a byte too many is found like a byte too few.

#include "common/check.h"

#include <algorithm>
#include <vector>

constexpr int operations = 150;

// A linear memory of bytes with its mirror.
struct Linear {
    const char *name;
    unsigned char *data;
    bool on_host;
    std::vector<unsigned char> mirror;
};

// An array of 4-byte elements with its mirror; depth 0 for two dimensions.
struct Array {
    cudaArray_t array;
    size_t width, height, depth;
    std::vector<uint32_t> mirror;

    size_t layers() const { return depth ? depth : 1; }
    uint32_t &at(size_t x, size_t y, size_t z) { return mirror[(z * height + y) * width + x]; }
};

// A box of rows inside linear memory.
struct Box {
    size_t offset, pitch, rows; // rows: lines from one slice to the next
};

class Memories {
public:
    Memories(Program &program, size_t bytes) : program_(program), random_(program.seed()), bytes_(bytes) {
        static const char *const names[] = {"device memory", "more device memory", "pageable memory", "pinned memory"};
        for (int at = 0; at < 4; ++at) {
            linear_[at] = {names[at], nullptr, at >= 2, std::vector<unsigned char>(bytes)};
            for (unsigned char &byte : linear_[at].mirror) {
                byte = static_cast<unsigned char>(random_.next());
            }
        }
        CUDA_CHECK(cudaMalloc(&linear_[0].data, bytes));
        CUDA_CHECK(cudaMalloc(&linear_[1].data, bytes));
        pageable_.resize(bytes);
        linear_[2].data = pageable_.data();
        CUDA_CHECK(cudaMallocHost(&linear_[3].data, bytes));
        for (Linear &memory : linear_) {
            CUDA_CHECK(cudaMemcpy(memory.data, memory.mirror.data(), bytes, cudaMemcpyDefault));
        }
        make_array(flat_[0], 45, 37, 0);
        make_array(flat_[1], 64, 21, 0);
        make_array(solid_[0], 19, 11, 7);
        make_array(solid_[1], 13, 14, 9);
        CUDA_CHECK(cudaStreamCreate(&stream_));
    }

    ~Memories() {
        CUDA_CHECK(cudaStreamDestroy(stream_));
        for (Array *array : {&flat_[0], &flat_[1], &solid_[0], &solid_[1]}) {
            CUDA_CHECK(cudaFreeArray(array->array));
        }
        CUDA_CHECK(cudaFreeHost(linear_[3].data));
        CUDA_CHECK(cudaFree(linear_[1].data));
        CUDA_CHECK(cudaFree(linear_[0].data));
    }

    void operate() {
        switch (random_.below(9)) {
        case 0:
            return copy_1d();
        case 1:
            return copy_2d();
        case 2:
            return copy_3d();
        case 3:
            return fill();
        case 4:
            return copy_flat(true);
        case 5:
            return copy_flat(false);
        case 6:
            return copy_solid(true);
        case 7:
            return copy_solid(false);
        default:
            return copy_between();
        }
    }

    void check() {
        CUDA_CHECK(cudaStreamSynchronize(stream_));
        std::vector<unsigned char> got(bytes_);
        for (Linear &memory : linear_) {
            CUDA_CHECK(cudaMemcpy(got.data(), memory.data, bytes_, cudaMemcpyDefault));
            if (!program_.expect_equal(memory.name, got.data(), memory.mirror.data(), bytes_)) {
                return;
            }
            program_.digest(got.data(), bytes_);
        }
        for (Array *array : {&flat_[0], &flat_[1], &solid_[0], &solid_[1]}) {
            std::vector<uint32_t> elements(array->mirror.size());
            cudaMemcpy3DParms copy = {};
            copy.srcArray = array->array;
            copy.dstPtr = make_cudaPitchedPtr(elements.data(), array->width * 4, array->width, array->height);
            copy.extent = make_cudaExtent(array->width, array->height, array->layers());
            copy.kind = cudaMemcpyDeviceToHost;
            CUDA_CHECK(cudaMemcpy3D(&copy));
            program_.expect_equal(array->depth ? "a 3D array" : "a 2D array", elements.data(), array->mirror.data(),
                                  elements.size());
            program_.digest(elements.data(), elements.size() * 4);
        }
    }

private:
    size_t upto(size_t most) { return random_.below(static_cast<uint32_t>(most) + 1); }
    size_t from_1_to(size_t most) { return 1 + random_.below(static_cast<uint32_t>(most)); }
    bool coin() { return random_.below(2); }

    void make_array(Array &array, size_t width, size_t height, size_t depth) {
        array = {nullptr, width, height, depth, {}};
        array.mirror.resize(width * height * array.layers());
        for (uint32_t &element : array.mirror) {
            element = static_cast<uint32_t>(random_.next());
        }
        cudaChannelFormatDesc format = cudaCreateChannelDesc<unsigned>();
        CUDA_CHECK(cudaMalloc3DArray(&array.array, &format, make_cudaExtent(width, height, depth)));
        cudaMemcpy3DParms copy = {};
        copy.srcPtr = make_cudaPitchedPtr(array.mirror.data(), width * 4, width, height);
        copy.dstArray = array.array;
        copy.extent = make_cudaExtent(width, height, array.layers());
        copy.kind = cudaMemcpyHostToDevice;
        CUDA_CHECK(cudaMemcpy3D(&copy));
    }

    // Two different memories, so that source and destination never overlap.
    void pick(Linear *&to, Linear *&from) {
        size_t first = random_.below(4), second = (first + 1 + random_.below(3)) % 4;
        to = &linear_[first];
        from = &linear_[second];
    }

    cudaMemcpyKind kind(bool to_host, bool from_host) {
        if (coin()) {
            return cudaMemcpyDefault;
        }
        return to_host ? from_host ? cudaMemcpyHostToHost : cudaMemcpyDeviceToHost
                       : from_host ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice;
    }

    // Work with host memory is synchronized at once; the rest is ordered by the streams.
    void settle(bool host, bool asynchronous) {
        if (host && asynchronous) {
            CUDA_CHECK(cudaStreamSynchronize(stream_));
        } else if (host) {
            CUDA_CHECK(cudaDeviceSynchronize());
        }
    }

    // A box for rows x slices of `width` bytes; the pitch is odd as often as not.
    Box place(size_t width, size_t height, size_t slices, size_t unit) {
        Box box;
        box.rows = height + (slices > 1 ? upto(2) : 0);
        size_t spare = bytes_ / (box.rows * slices);
        box.pitch = width + upto(std::min<size_t>(spare - width, 40)) / unit * unit;
        size_t used = box.pitch * (box.rows * (slices - 1) + height - 1) + width;
        box.offset = upto(bytes_ - used) / unit * unit;
        return box;
    }

    static size_t index(const Box &box, size_t x, size_t y, size_t z) {
        return box.offset + box.pitch * (box.rows * z + y) + x;
    }

    void copy_1d() {
        Linear *to, *from;
        pick(to, from);
        size_t count = from_1_to(bytes_ / 2), at = upto(bytes_ - count), source = upto(bytes_ - count);
        bool asynchronous = coin(), host = to->on_host || from->on_host;
        cudaMemcpyKind direction = kind(to->on_host, from->on_host);
        if (!host && coin()) {
            if (asynchronous) {
                CUDA_CHECK(cudaMemcpyPeerAsync(to->data + at, 0, from->data + source, 0, count, stream_));
            } else {
                CUDA_CHECK(cudaMemcpyPeer(to->data + at, 0, from->data + source, 0, count));
            }
        } else if (asynchronous) {
            CUDA_CHECK(cudaMemcpyAsync(to->data + at, from->data + source, count, direction, stream_));
        } else {
            CUDA_CHECK(cudaMemcpy(to->data + at, from->data + source, count, direction));
        }
        settle(host, asynchronous);
        std::memcpy(&to->mirror[at], &from->mirror[source], count);
    }

    void copy_2d() {
        Linear *to, *from;
        pick(to, from);
        size_t height = from_1_to(60), width = from_1_to(bytes_ / height / 2);
        Box there = place(width, height, 1, 1), here = place(width, height, 1, 1);
        bool asynchronous = coin();
        cudaMemcpyKind direction = kind(to->on_host, from->on_host);
        if (asynchronous) {
            CUDA_CHECK(cudaMemcpy2DAsync(to->data + there.offset, there.pitch, from->data + here.offset, here.pitch,
                                         width, height, direction, stream_));
        } else {
            CUDA_CHECK(cudaMemcpy2D(to->data + there.offset, there.pitch, from->data + here.offset, here.pitch, width,
                                    height, direction));
        }
        settle(to->on_host || from->on_host, asynchronous);
        mirror_box(*to, there, *from, here, width, height, 1);
    }

    void mirror_box(Linear &to, const Box &there, const Linear &from, const Box &here, size_t width, size_t height,
                    size_t slices) {
        for (size_t z = 0; z < slices; ++z) {
            for (size_t y = 0; y < height; ++y) {
                std::memcpy(&to.mirror[index(there, 0, y, z)], &from.mirror[index(here, 0, y, z)], width);
            }
        }
    }

    void run_3d(cudaMemcpy3DParms &copy, bool host) {
        bool asynchronous = coin();
        if (asynchronous) {
            CUDA_CHECK(cudaMemcpy3DAsync(&copy, stream_));
        } else {
            CUDA_CHECK(cudaMemcpy3D(&copy));
        }
        settle(host, asynchronous);
    }

    void copy_3d() {
        Linear *to, *from;
        pick(to, from);
        size_t slices = from_1_to(6), height = from_1_to(9), width = from_1_to(bytes_ / (height + 2) / slices / 2);
        Box there = place(width, height, slices, 1), here = place(width, height, slices, 1);
        // The offset is given as a position for one side, in the pointer for the other.
        cudaMemcpy3DParms copy = {};
        copy.srcPtr = make_cudaPitchedPtr(from->data + here.offset, here.pitch, width, here.rows);
        size_t x = std::min(upto(there.offset), there.pitch - width);
        copy.dstPtr = make_cudaPitchedPtr(to->data + there.offset - x, there.pitch, width, there.rows);
        copy.dstPos = make_cudaPos(x, 0, 0);
        copy.extent = make_cudaExtent(width, height, slices);
        copy.kind = kind(to->on_host, from->on_host);
        run_3d(copy, to->on_host || from->on_host);
        mirror_box(*to, there, *from, here, width, height, slices);
    }

    void fill() {
        Linear &to = linear_[random_.below(2)];
        int value = static_cast<int>(random_.below(256));
        size_t dimensions = from_1_to(3), slices = dimensions == 3 ? from_1_to(6) : 1;
        size_t height = dimensions == 1 ? 1 : from_1_to(20), width = from_1_to(bytes_ / (height + 2) / slices);
        Box box = place(width, height, slices, 1);
        unsigned char *start = to.data + box.offset;
        bool asynchronous = coin();
        cudaPitchedPtr pointer = make_cudaPitchedPtr(start, box.pitch, width, box.rows);
        cudaExtent extent = make_cudaExtent(width, height, slices);
        if (dimensions == 1) {
            CUDA_CHECK(asynchronous ? cudaMemsetAsync(start, value, width, stream_) : cudaMemset(start, value, width));
        } else if (dimensions == 2) {
            CUDA_CHECK(asynchronous ? cudaMemset2DAsync(start, box.pitch, value, width, height, stream_)
                                    : cudaMemset2D(start, box.pitch, value, width, height));
        } else {
            CUDA_CHECK(asynchronous ? cudaMemset3DAsync(pointer, value, extent, stream_)
                                    : cudaMemset3D(pointer, value, extent));
        }
        for (size_t z = 0; z < slices; ++z) {
            for (size_t y = 0; y < height; ++y) {
                std::memset(&to.mirror[index(box, 0, y, z)], value, width);
            }
        }
    }

    // Between a 2D array and linear memory; offsets into the array count bytes.
    void copy_flat(bool into_array) {
        Array &array = flat_[random_.below(2)];
        Linear &memory = linear_[random_.below(4)];
        size_t width = from_1_to(array.width), height = from_1_to(array.height);
        size_t x = upto(array.width - width), y = upto(array.height - height);
        Box box = place(width * 4, height, 1, 4);
        unsigned char *start = memory.data + box.offset;
        bool asynchronous = coin();
        cudaMemcpyKind direction = into_array ? kind(false, memory.on_host) : kind(memory.on_host, false);
        if (into_array) {
            CUDA_CHECK(asynchronous ? cudaMemcpy2DToArrayAsync(array.array, x * 4, y, start, box.pitch, width * 4,
                                                               height, direction, stream_)
                                    : cudaMemcpy2DToArray(array.array, x * 4, y, start, box.pitch, width * 4, height,
                                                          direction));
        } else {
            CUDA_CHECK(asynchronous ? cudaMemcpy2DFromArrayAsync(start, box.pitch, array.array, x * 4, y, width * 4,
                                                                 height, direction, stream_)
                                    : cudaMemcpy2DFromArray(start, box.pitch, array.array, x * 4, y, width * 4, height,
                                                            direction));
        }
        settle(memory.on_host, asynchronous);
        mirror_array(array, x, y, 0, memory, box, width, height, 1, into_array);
    }

    void copy_solid(bool into_array) {
        Array &array = solid_[random_.below(2)];
        Linear &memory = linear_[random_.below(4)];
        size_t width = from_1_to(array.width), height = from_1_to(array.height), slices = from_1_to(array.depth);
        size_t x = upto(array.width - width), y = upto(array.height - height), z = upto(array.depth - slices);
        Box box = place(width * 4, height, slices, 4);
        cudaMemcpy3DParms copy = {};
        cudaPitchedPtr pointer = make_cudaPitchedPtr(memory.data + box.offset, box.pitch, width * 4, box.rows);
        copy.extent = make_cudaExtent(width, height, slices);
        if (into_array) {
            copy.srcPtr = pointer;
            copy.dstArray = array.array;
            copy.dstPos = make_cudaPos(x, y, z);
            copy.kind = kind(false, memory.on_host);
        } else {
            copy.srcArray = array.array;
            copy.srcPos = make_cudaPos(x, y, z);
            copy.dstPtr = pointer;
            copy.kind = kind(memory.on_host, false);
        }
        run_3d(copy, memory.on_host);
        mirror_array(array, x, y, z, memory, box, width, height, slices, into_array);
    }

    static void mirror_array(Array &array, size_t x, size_t y, size_t z, Linear &memory, const Box &box, size_t width,
                             size_t height, size_t slices, bool into_array) {
        for (size_t k = 0; k < slices; ++k) {
            for (size_t j = 0; j < height; ++j) {
                void *in_array = &array.at(x, y + j, z + k), *in_memory = &memory.mirror[index(box, 0, j, k)];
                std::memcpy(into_array ? in_array : in_memory, into_array ? in_memory : in_array, width * 4);
            }
        }
    }

    // From array to array, 2D or 3D.
    void copy_between() {
        bool flat = coin();
        size_t first = random_.below(2);
        Array &to = flat ? flat_[first] : solid_[first], &from = flat ? flat_[1 - first] : solid_[1 - first];
        size_t width = from_1_to(std::min(to.width, from.width)), height = from_1_to(std::min(to.height, from.height));
        size_t slices = from_1_to(std::min(to.layers(), from.layers()));
        size_t x = upto(to.width - width), y = upto(to.height - height), z = upto(to.layers() - slices);
        size_t u = upto(from.width - width), v = upto(from.height - height), w = upto(from.layers() - slices);
        if (flat) {
            CUDA_CHECK(cudaMemcpy2DArrayToArray(to.array, x * 4, y, from.array, u * 4, v, width * 4, height,
                                                cudaMemcpyDeviceToDevice));
        } else {
            cudaMemcpy3DParms copy = {};
            copy.srcArray = from.array;
            copy.srcPos = make_cudaPos(u, v, w);
            copy.dstArray = to.array;
            copy.dstPos = make_cudaPos(x, y, z);
            copy.extent = make_cudaExtent(width, height, slices);
            copy.kind = cudaMemcpyDeviceToDevice;
            run_3d(copy, false);
        }
        for (size_t k = 0; k < slices; ++k) {
            for (size_t j = 0; j < height; ++j) {
                std::memcpy(&to.at(x, y + j, z + k), &from.at(u, v + j, w + k), width * 4);
            }
        }
    }

    Program &program_;
    Random random_;
    size_t bytes_;
    Linear linear_[4];
    std::vector<unsigned char> pageable_;
    Array flat_[2];
    Array solid_[2];
    cudaStream_t stream_;
};

// Pitched allocations have the promised size and alignment.
static void check_pitched(Program &program) {
    for (size_t width : {1, 63, 512, 1000, 4097}) {
        cudaPitchedPtr pointer;
        CUDA_CHECK(cudaMalloc3D(&pointer, make_cudaExtent(width, 5, 3)));
        program.expect(pointer.pitch >= width && pointer.pitch % 32 == 0 && pointer.xsize == width && pointer.ysize == 5,
                       "cudaMalloc3D returned a wrong pitched pointer");
        CUDA_CHECK(cudaMemset3D(pointer, 9, make_cudaExtent(width, 5, 3)));
        std::vector<unsigned char> got(width * 15), want(width * 15, 9);
        cudaMemcpy3DParms copy = {};
        copy.srcPtr = pointer;
        copy.dstPtr = make_cudaPitchedPtr(got.data(), width, width, 5);
        copy.extent = make_cudaExtent(width, 5, 3);
        copy.kind = cudaMemcpyDeviceToHost;
        CUDA_CHECK(cudaMemcpy3D(&copy));
        program.expect_equal("cudaMalloc3D's memory", got.data(), want.data(), got.size());
        CUDA_CHECK(cudaFree(pointer.ptr));
    }
    size_t available = 0, total = 0;
    CUDA_CHECK(cudaMemGetInfo(&available, &total));
    program.expect(available > 0 && available <= total, "more memory is free than exists");
}

int main(int argc, char **argv) {
    // Over a window, copies of more than 64 KiB make smaller ones use its slots, too.
    Program program("copies", "copies and fills in one, two and three dimensions", "bytes of each memory", 70001, 20000,
                    1L << 28);
    program.parse(argc, argv);
    Memories memories(program, static_cast<size_t>(program.size()));
    while (program.next_round()) {
        check_pitched(program);
        for (int at = 0; at < operations; ++at) {
            memories.operate();
        }
        memories.check();
    }
    return program.finish();
}
