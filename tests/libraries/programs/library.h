// What the programs of NVIDIA's libraries share: status checks, random inputs,
// and a product on the CPU.

#ifndef PARAGPU_TESTS_LIBRARY_H
#define PARAGPU_TESTS_LIBRARY_H

#include "../../programs/common/check.h"

#include <complex>
#include <vector>

// Every status type of these libraries has its success at 0.
template <typename Status> void library_check(Status status, const char *call, int line) {
    if (static_cast<int>(status) != 0) {
        Program::current()->die("%s gave status %d at line %d", call, static_cast<int>(status), line);
    }
}

#define LIBRARY_CHECK(call) library_check((call), #call, __LINE__)

// Multiples of 1/16: sums of their products are exact in float, in any order.
template <typename T> std::vector<T> sixteenths(Random &random, size_t count) {
    std::vector<T> numbers(count);
    for (T &number : numbers) {
        number = static_cast<T>(random.sixteenth());
    }
    return numbers;
}

// What a device array holds.
template <typename T> std::vector<T> downloaded(const DeviceArray<T> &array) {
    std::vector<T> host(array.count());
    array.download(host.data());
    return host;
}

template <typename T> std::vector<float> as_floats(const std::vector<T> &numbers) {
    std::vector<float> floats(numbers.size());
    for (size_t at = 0; at < numbers.size(); ++at) {
        floats[at] = static_cast<float>(numbers[at]);
    }
    return floats;
}

// |got - want| <= tolerance * max(1, |want|) for each element, in double.
template <typename T, typename U>
void expect_close(const char *what, const std::vector<T> &got, const std::vector<U> &want, double tolerance) {
    for (size_t at = 0; at < want.size(); ++at) {
        double off = std::abs(got[at] - static_cast<T>(want[at]));
        double most = tolerance * std::fmax(1.0, std::abs(static_cast<T>(want[at])));
        if (!(off <= most)) {
            Program::current()->fail("element %zu of %s is off by %g, more than %g", at, what, off, most);
            return;
        }
    }
}

// C = A B with A rows x inner, B inner x columns, each stored by columns; a
// transposed operand is stored by rows.
template <typename T>
std::vector<T> product(const std::vector<T> &a, const std::vector<T> &b, int rows, int columns, int inner,
                       bool a_by_rows = false, bool b_by_rows = false) {
    std::vector<T> c(static_cast<size_t>(rows) * columns);
    for (int column = 0; column < columns; ++column) {
        for (int row = 0; row < rows; ++row) {
            T sum{};
            for (int k = 0; k < inner; ++k) {
                T left = a_by_rows ? a[static_cast<size_t>(row) * inner + k] : a[static_cast<size_t>(k) * rows + row];
                T right = b_by_rows ? b[static_cast<size_t>(k) * columns + column]
                                    : b[static_cast<size_t>(column) * inner + k];
                sum += left * right;
            }
            c[static_cast<size_t>(column) * rows + row] = sum;
        }
    }
    return c;
}

#endif
