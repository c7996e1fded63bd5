// What every test program shares: arguments, rounds, comparison with the CPU,
// and one uniform line of output.
//
// A program creates one `Program`, parses its arguments, does its work in
// `while (program.next_round())`, checks results with `expect_*`, and returns
// `program.finish()`. Exit status: 0 correct, 1 wrong, 2 bad arguments.

#ifndef PARAGPU_TESTS_CHECK_H
#define PARAGPU_TESTS_CHECK_H

#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <type_traits>

// A small generator with one 64-bit word of state (splitmix64): the same inputs
// on every machine.
class Random {
public:
    explicit Random(uint64_t seed) : state_(seed) {}

    uint64_t next() {
        state_ += 0x9e3779b97f4a7c15ull;
        uint64_t word = state_;
        word = (word ^ (word >> 30)) * 0xbf58476d1ce4e5b9ull;
        word = (word ^ (word >> 27)) * 0x94d049bb133111ebull;
        return word ^ (word >> 31);
    }

    // Uniform in [0, bound); bound must not be 0.
    uint32_t below(uint32_t bound) { return static_cast<uint32_t>((next() >> 32) * bound >> 32); }

    // Uniform in [low, high).
    float uniform(float low, float high) {
        return low + (high - low) * (static_cast<float>(next() >> 40) * (1.0f / 16777216.0f));
    }

    // A multiple of 1/16 in (-1, 1). Sums of up to 65536 products of two such
    // numbers are exact in float, in any order and with or without fma.
    float sixteenth() { return (static_cast<float>(below(31)) - 15.0f) * 0.0625f; }

private:
    uint64_t state_;
};

class Program {
public:
    // `size_meaning` says in --help what --size counts; `smallest` and `largest`
    // bound it.
    Program(const char *name, const char *purpose, const char *size_meaning, long size, long smallest, long largest,
            long iterations = 1)
        : name_(name), purpose_(purpose), size_meaning_(size_meaning), size_(size), smallest_(smallest),
          largest_(largest), iterations_(iterations), started_(now()) {
        current() = this;
    }

    // The program that CUDA_CHECK and the like report for.
    static Program *&current() {
        static Program *program = nullptr;
        return program;
    }

    void parse(int argc, char **argv) {
        for (int at = 1; at < argc; ++at) {
            const char *option = argv[at];
            if (!std::strcmp(option, "--size")) {
                size_ = integer(option, value(argc, argv, &at), smallest_, largest_);
            } else if (!std::strcmp(option, "--iterations")) {
                iterations_ = integer(option, value(argc, argv, &at), 1, 1000000000L);
            } else if (!std::strcmp(option, "--seed")) {
                seed_ = static_cast<uint64_t>(integer(option, value(argc, argv, &at), 0, INT64_MAX));
            } else if (!std::strcmp(option, "--seconds")) {
                char *end = nullptr;
                const char *text = value(argc, argv, &at);
                seconds_ = std::strtod(text, &end);
                if (end == text || *end || !(seconds_ > 0) || seconds_ > 1e6) {
                    usage_error("--seconds needs a number over 0, not '%s'", text);
                }
            } else if (!std::strcmp(option, "--verify")) {
                verify_ = true;
            } else if (!std::strcmp(option, "--no-verify")) {
                verify_ = false;
            } else if (!std::strcmp(option, "--json")) {
                json_ = true;
            } else if (!std::strcmp(option, "--help")) {
                help();
                std::exit(0);
            } else if (!accept(option)) {
                usage_error("unknown option '%s'", option);
            }
        }
    }

    // An additional option without a value that only this program accepts.
    void add_flag(const char *option, bool *flag, const char *meaning) {
        flag_ = option;
        flag_value_ = flag;
        flag_meaning_ = meaning;
    }

    const char *name() const { return name_; }
    long size() const { return size_; }
    long iterations() const { return iterations_; }
    uint64_t seed() const { return seed_; }
    bool verify() const { return verify_; }
    bool json() const { return json_; }

    // True as long as another round is wanted: --iterations of them, or as many
    // as --seconds allows, and never after a wrong result.
    bool next_round() {
        if (failed_) {
            return false;
        }
        bool wanted = seconds_ > 0 ? rounds_ == 0 || now() - started_ < seconds_ : rounds_ < iterations_;
        rounds_ += wanted;
        if (wanted) {
            digest_ = digest_start;
        }
        return wanted;
    }

    // Adds bytes of the result to the digest of this round: FNV-1a over
    // little-endian eight-byte words, then over the bytes left.
    void digest(const void *data, size_t bytes) {
        const unsigned char *at = static_cast<const unsigned char *>(data);
        for (; bytes >= 8; bytes -= 8, at += 8) {
            uint64_t word;
            std::memcpy(&word, at, 8);
            digest_ = (digest_ ^ word) * digest_prime;
            digest_ ^= digest_ >> 32;
        }
        for (; bytes; --bytes, ++at) {
            digest_ = (digest_ ^ *at) * digest_prime;
        }
    }

    // Records the first thing that is wrong; later ones follow from it.
    __attribute__((format(printf, 2, 3))) void fail(const char *format, ...) {
        if (failed_) {
            return;
        }
        failed_ = true;
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(reason_, sizeof reason_, format, arguments);
        va_end(arguments);
    }

    // A remark for the line of output (only the last one is printed).
    __attribute__((format(printf, 2, 3))) void note(const char *format, ...) {
        va_list arguments;
        va_start(arguments, format);
        std::vsnprintf(note_, sizeof note_, format, arguments);
        va_end(arguments);
    }

    bool failed() const { return failed_; }

    // Compares all elements bit for bit; returns whether they are equal.
    template <typename T> bool expect_equal(const char *what, const T *got, const T *want, size_t count) {
        if (!verify_ || !std::memcmp(got, want, count * sizeof(T))) {
            return true;
        }
        for (size_t at = 0; at < count; ++at) {
            if (std::memcmp(&got[at], &want[at], sizeof(T))) {
                report_element(what, at, got[at], want[at]);
                return false;
            }
        }
        return true;
    }

    template <typename T> bool expect_equal(const char *what, T got, T want) {
        if (verify_ && got != want) {
            fail("%s: got %.9g, expected %.9g", what, static_cast<double>(got), static_cast<double>(want));
            return false;
        }
        return true;
    }

    // Checks |got - want| <= absolute + relative * |want| for all elements. NaN fails.
    bool expect_near(const char *what, const float *got, const float *want, size_t count, double relative,
                     double absolute) {
        for (size_t at = 0; verify_ && at < count; ++at) {
            double off = std::fabs(static_cast<double>(got[at]) - want[at]);
            if (!(off <= absolute + relative * std::fabs(static_cast<double>(want[at])))) {
                fail("element %zu of %s: got %.9g, expected %.9g within %g relative + %g", at, what, got[at], want[at],
                     relative, absolute);
                return false;
            }
        }
        return true;
    }

    // Checks a condition. `wrong` describes the failure: it is printed if `right` is false.
    bool expect(bool right, const char *wrong) {
        if (!right) {
            fail("%s", wrong);
        }
        return right;
    }

    // Prints the line of output and returns the exit status.
    int finish() {
        double seconds = now() - started_;
        if (json_) {
            std::printf("{\"program\":\"%s\",\"ok\":%s,\"digest\":\"%016llx\",\"seconds\":%.6f,\"rounds\":%ld,"
                        "\"size\":%ld,\"seed\":%llu,\"verified\":%s",
                        name_, failed_ ? "false" : "true", static_cast<unsigned long long>(digest_), seconds, rounds_,
                        size_, static_cast<unsigned long long>(seed_), verify_ ? "true" : "false");
            print_json_text("note", note_);
            print_json_text("reason", failed_ ? reason_ : "");
            std::printf("}\n");
        } else if (failed_) {
            std::printf("%s: FAILED %s\n", name_, reason_);
        } else {
            std::printf("%s: ok size=%ld rounds=%ld digest=%016llx seconds=%.3f%s%s%s\n", name_, size_, rounds_,
                        static_cast<unsigned long long>(digest_), seconds, verify_ ? "" : " (not verified)",
                        *note_ ? " " : "", note_);
        }
        std::fflush(stdout);
        return failed_ ? 1 : 0;
    }

    // Ends the program immediately, after an unrecoverable error.
    [[noreturn]] __attribute__((format(printf, 2, 3))) void die(const char *format, ...) {
        if (!failed_) {
            failed_ = true;
            va_list arguments;
            va_start(arguments, format);
            std::vsnprintf(reason_, sizeof reason_, format, arguments);
            va_end(arguments);
        }
        std::exit(finish());
    }

    // Seconds of a monotonic clock.
    static double now() {
        timespec time;
        clock_gettime(CLOCK_MONOTONIC, &time);
        return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    }

private:
    static constexpr uint64_t digest_start = 0xcbf29ce484222325ull;
    static constexpr uint64_t digest_prime = 0x100000001b3ull;

    void help() const {
        std::printf("%s: %s\n\n"
                    "  --size N        %s (default %ld, %ld to %ld)\n"
                    "  --iterations N  rounds (default %ld)\n"
                    "  --seed N        seed of the inputs (default %llu)\n"
                    "  --seconds S     as many rounds as S seconds allow, instead of --iterations\n"
                    "  --no-verify     do not compare with the CPU (--verify, the default, does)\n"
                    "  --json          one line of JSON\n",
                    name_, purpose_, size_meaning_, size_, smallest_, largest_, iterations_,
                    static_cast<unsigned long long>(seed_));
        if (flag_) {
            std::printf("  %-15s %s\n", flag_, flag_meaning_);
        }
        std::printf("  --help          this text\n");
    }

    bool accept(const char *option) {
        if (!flag_ || std::strcmp(option, flag_)) {
            return false;
        }
        *flag_value_ = true;
        return true;
    }

    const char *value(int argc, char **argv, int *at) {
        if (*at + 1 >= argc) {
            usage_error("%s needs a value", argv[*at]);
        }
        return argv[++*at];
    }

    long integer(const char *option, const char *text, long low, long high) {
        char *end = nullptr;
        errno = 0;
        long number = std::strtol(text, &end, 0);
        if (end == text || *end || errno || number < low || number > high) {
            usage_error("%s needs an integer from %ld to %ld, not '%s'", option, low, high, text);
        }
        return number;
    }

    [[noreturn]] __attribute__((format(printf, 2, 3))) void usage_error(const char *format, ...) {
        std::fprintf(stderr, "%s: ", name_);
        va_list arguments;
        va_start(arguments, format);
        std::vfprintf(stderr, format, arguments);
        va_end(arguments);
        std::fprintf(stderr, " (see --help)\n");
        std::exit(2);
    }

    static void print_json_text(const char *key, const char *text) {
        if (!*text) {
            return;
        }
        std::printf(",\"%s\":\"", key);
        for (; *text; ++text) {
            unsigned char letter = static_cast<unsigned char>(*text);
            if (letter == '"' || letter == '\\') {
                std::printf("\\%c", letter);
            } else if (letter < 0x20) {
                std::printf("\\u%04x", letter);
            } else {
                std::putchar(letter);
            }
        }
        std::putchar('"');
    }

    template <typename T> void report_element(const char *what, size_t at, const T &got, const T &want) {
        if constexpr (std::is_arithmetic<T>::value) {
            fail("element %zu of %s: got %.9g, expected %.9g", at, what, static_cast<double>(got),
                 static_cast<double>(want));
        } else {
            fail("element %zu of %s is wrong", at, what);
        }
    }

    const char *name_;
    const char *purpose_;
    const char *size_meaning_;
    long size_;
    long smallest_;
    long largest_;
    long iterations_;
    double started_;
    double seconds_ = 0;
    uint64_t seed_ = 1;
    bool verify_ = true;
    bool json_ = false;
    const char *flag_ = nullptr;
    bool *flag_value_ = nullptr;
    const char *flag_meaning_ = nullptr;
    long rounds_ = 0;
    uint64_t digest_ = digest_start;
    bool failed_ = false;
    char reason_[512] = "";
    char note_[256] = "";
};

#ifdef __CUDACC__
#include <cuda_runtime.h>

inline void cuda_check(cudaError_t status, const char *call, const char *file, int line) {
    if (status != cudaSuccess) {
        const char *name = std::strrchr(file, '/');
        Program::current()->die("%s gave %s (%s) at %s:%d", call, cudaGetErrorName(status), cudaGetErrorString(status),
                                name ? name + 1 : file, line);
    }
}

// Work that is added to the stream from now on waits for the event.
inline cudaError_t wait_event(cudaStream_t stream, cudaEvent_t event) { return cudaStreamWaitEvent(stream, event, 0); }

// Milliseconds between two recorded events.
inline cudaError_t elapsed(float *milliseconds, cudaEvent_t start, cudaEvent_t stop) {
    return cudaEventElapsedTime(milliseconds, start, stop);
}

// The call must succeed.
#define CUDA_CHECK(call) cuda_check((call), #call, __FILE__, __LINE__)
// The preceding launch must have been accepted.
#define LAUNCH_CHECK() cuda_check(cudaGetLastError(), "the launch", __FILE__, __LINE__)

// Device memory for `count` elements, freed with its scope.
template <typename T> class DeviceArray {
public:
    explicit DeviceArray(size_t count) : count_(count) { CUDA_CHECK(cudaMalloc(&data_, count * sizeof(T))); }
    DeviceArray(const T *host, size_t count) : DeviceArray(count) { upload(host); }
    DeviceArray(const DeviceArray &) = delete;
    DeviceArray &operator=(const DeviceArray &) = delete;
    ~DeviceArray() { CUDA_CHECK(cudaFree(data_)); }

    T *get() const { return data_; }
    size_t count() const { return count_; }
    size_t bytes() const { return count_ * sizeof(T); }
    void upload(const T *host) { CUDA_CHECK(cudaMemcpy(data_, host, bytes(), cudaMemcpyHostToDevice)); }
    void download(T *host) const { CUDA_CHECK(cudaMemcpy(host, data_, bytes(), cudaMemcpyDeviceToHost)); }
    // Fills the memory with a byte, so that a launch that did not run cannot
    // leave the correct result of the previous round.
    void spoil() { CUDA_CHECK(cudaMemset(data_, 0xa5, bytes())); }

private:
    T *data_ = nullptr;
    size_t count_;
};

// The number of blocks of `block` threads that cover `count`.
inline unsigned blocks_for(size_t count, unsigned block) {
    return static_cast<unsigned>((count + block - 1) / block);
}
#endif

#endif
