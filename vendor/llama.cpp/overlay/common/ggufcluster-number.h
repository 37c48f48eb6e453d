// Numbers as Python writes them, in whose words chat templates were made and models were trained.
#pragma once

#include <string>

namespace ggufcluster {

// The shortest text that is this number, as Python's repr() and json.dumps() have it: 0.1, 3.0, 1e-07, 1e+16.
std::string float_text(double value);

} // namespace ggufcluster
