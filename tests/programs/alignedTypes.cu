// alignedTypes: copies arrays of structures with and without alignment.
//
// The alignment of a type decides which loads and stores the compiler uses, from
// one byte to 16. Every member must be copied; padding may have any value.

#include "common/check.h"

#include <vector>

template <typename Word, int count, int alignment> struct alignas(alignment) Structure {
    Word words[count];
};

template <typename T> __global__ void copy(T *to, const T *from, size_t count) {
    size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
    for (size_t at = static_cast<size_t>(blockIdx.x) * blockDim.x + threadIdx.x; at < count; at += step) {
        to[at] = from[at];
    }
}

template <typename Word, int words, int alignment>
static void run(Program &program, const char *what, const DeviceArray<unsigned char> &from,
                DeviceArray<unsigned char> &to, const std::vector<unsigned char> &data) {
    using T = Structure<Word, words, alignment>;
    size_t count = data.size() / sizeof(T);
    to.spoil();
    copy<<<32, 128>>>(reinterpret_cast<T *>(to.get()), reinterpret_cast<const T *>(from.get()), count);
    LAUNCH_CHECK();
    std::vector<unsigned char> got(data.size());
    to.download(got.data());
    bool right = true;
    for (size_t at = 0; at < count; ++at) {
        const unsigned char *element = &got[at * sizeof(T)];
        right &= !std::memcmp(element, &data[at * sizeof(T)], sizeof(Word) * words);
        program.digest(element, sizeof(Word) * words);
    }
    // Memory behind the last element must be unchanged.
    for (size_t at = count * sizeof(T); at < got.size(); ++at) {
        right &= got[at] == 0xa5;
    }
    if (program.verify() && !right) {
        program.fail("%s: not copied right", what);
    }
}

int main(int argc, char **argv) {
    Program program("alignedTypes", "copies structures of different alignment", "bytes of each array", 200003, 32,
                    1L << 32);
    program.parse(argc, argv);
    Random random(program.seed());
    std::vector<unsigned char> data(static_cast<size_t>(program.size()));
    for (unsigned char &byte : data) {
        byte = static_cast<unsigned char>(random.next());
    }
    DeviceArray<unsigned char> from(data.data(), data.size()), to(data.size());

    while (program.next_round()) {
        run<uint8_t, 1, 1>(program, "8 bits", from, to, data);
        run<uint16_t, 1, 2>(program, "16 bits", from, to, data);
        run<uint32_t, 1, 4>(program, "32 bits", from, to, data);
        run<uint64_t, 1, 8>(program, "64 bits", from, to, data);
        run<uint8_t, 4, 1>(program, "4 x 8 bits", from, to, data);
        run<uint8_t, 4, 4>(program, "4 x 8 bits aligned to 4", from, to, data);
        run<uint32_t, 2, 4>(program, "2 x 32 bits", from, to, data);
        run<uint32_t, 2, 8>(program, "2 x 32 bits aligned to 8", from, to, data);
        run<uint32_t, 3, 4>(program, "3 x 32 bits", from, to, data);
        run<uint32_t, 3, 16>(program, "3 x 32 bits aligned to 16", from, to, data);
        run<uint32_t, 4, 4>(program, "4 x 32 bits", from, to, data);
        run<uint32_t, 4, 8>(program, "4 x 32 bits aligned to 8", from, to, data);
        run<uint32_t, 4, 16>(program, "4 x 32 bits aligned to 16", from, to, data);
        run<uint32_t, 8, 16>(program, "8 x 32 bits aligned to 16", from, to, data);
    }
    return program.finish();
}
