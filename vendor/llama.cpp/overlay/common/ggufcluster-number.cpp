#include "ggufcluster-number.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace ggufcluster {

static constexpr int MOST_DIGITS  = 17; // always enough for a double
static constexpr int MOST_PLAIN   = 16; // digits before the point, beyond which an exponent is written
static constexpr int FEWEST_PLAIN = -3; // zeros behind the point are fewer than four

// Its digits without point and zeros at the end; the point stands before the first one, `point` digits to the right.
static std::string digits_of(double value, int & point) {
    char text[40];
    for (int digits = 1; digits <= MOST_DIGITS; digits++) {
        snprintf(text, sizeof(text), "%.*e", digits - 1, value);
        if (std::strtod(text, nullptr) == value) {
            break;
        }
    }
    const std::string written  = text;
    const size_t      exponent = written.find('e');
    std::string       digits;
    for (const char c : written.substr(0, exponent)) { // the point is the locale's
        digits += c >= '0' && c <= '9' ? std::string(1, c) : "";
    }
    point = std::atoi(written.c_str() + exponent + 1) + 1;
    return digits;
}

static std::string plain(const std::string & digits, int point) {
    if (point <= 0) {
        return "0." + std::string(-point, '0') + digits;
    }
    if (point >= (int) digits.size()) {
        return digits + std::string(point - digits.size(), '0') + ".0";
    }
    return digits.substr(0, point) + "." + digits.substr(point);
}

static std::string with_exponent(const std::string & digits, int exponent) {
    char text[8];
    snprintf(text, sizeof(text), "e%+03d", exponent);
    return digits.substr(0, 1) + (digits.size() > 1 ? "." + digits.substr(1) : "") + text;
}

std::string float_text(double value) {
    if (!std::isfinite(value)) {
        return std::isnan(value) ? "nan" : value < 0 ? "-inf" : "inf";
    }
    int point = 0;
    const std::string digits   = digits_of(std::fabs(value), point);
    const bool        is_plain = point >= FEWEST_PLAIN && point <= MOST_PLAIN;
    return (std::signbit(value) ? "-" : "") + (is_plain ? plain(digits, point) : with_exponent(digits, point - 1));
}

} // namespace ggufcluster
