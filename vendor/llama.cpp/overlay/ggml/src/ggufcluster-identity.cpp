// Alone in its file: a new fingerprint recompiles this and nothing else of ours.
#include "ggufcluster.h"

const char * ggufcluster::fingerprint() {
    return GGUFCLUSTER_FINGERPRINT;
}

const char * ggufcluster::build_id() {
    return GGUFCLUSTER_BUILD_ID;
}
