# Adds ggufcluster's own files to upstream targets. Included once from the root
# CMakeLists.txt, before any target exists, hence the deferred call.
#
#   -DGGUFCLUSTER_FINGERPRINT  16 lower-case hex digits: pin + series + overlay
#   -DGGUFCLUSTER_BUILD_ID     fingerprint + options, for people
#   -DLLAMA_BUILD_COMMIT       optional upstream commit, kept in front of the build id
if (CMAKE_VERSION VERSION_LESS 3.19)
    message(FATAL_ERROR "CMake ${CMAKE_VERSION} is too old: 3.19 or newer is needed")
endif()

if (WIN32)
    message(FATAL_ERROR "ggufcluster's overlay is written for Linux and other POSIX systems")
endif()

set(GGUFCLUSTER_FINGERPRINT "unset" CACHE STRING "identifies pin, patch series and overlay")
set(GGUFCLUSTER_BUILD_ID "unset" CACHE STRING "fingerprint and build options")

string(LENGTH "${GGUFCLUSTER_FINGERPRINT}" ggufcluster_length)
if (NOT GGUFCLUSTER_FINGERPRINT STREQUAL "unset" AND
    NOT (ggufcluster_length EQUAL 16 AND GGUFCLUSTER_FINGERPRINT MATCHES "^[0-9a-f]+$"))
    message(FATAL_ERROR "GGUFCLUSTER_FINGERPRINT is '${GGUFCLUSTER_FINGERPRINT}', not 16 lower-case hex digits")
endif()
if (NOT GGUFCLUSTER_BUILD_ID MATCHES "^[A-Za-z0-9._+-]+$")
    message(FATAL_ERROR "GGUFCLUSTER_BUILD_ID is '${GGUFCLUSTER_BUILD_ID}': use letters, digits and . _ + - only")
endif()

# Upstream prints this commit in version output, bench records and /props. Set
# here, it cannot be that of a git repository the source happens to lie in.
if (DEFINED LLAMA_BUILD_COMMIT)
    set(LLAMA_BUILD_COMMIT "${LLAMA_BUILD_COMMIT}-ggufcluster-${GGUFCLUSTER_BUILD_ID}")
else()
    set(LLAMA_BUILD_COMMIT "ggufcluster-${GGUFCLUSTER_BUILD_ID}")
endif()
if (NOT DEFINED LLAMA_BUILD_NUMBER)
    set(LLAMA_BUILD_NUMBER 0)
endif()
# ggml asks git on its own account, unless it finds none.
set(GIT_EXE "" CACHE INTERNAL "switched off by ggufcluster")

function(ggufcluster_extend_targets)
    set(ggml_dir ${PROJECT_SOURCE_DIR}/ggml)
    target_sources(ggml-base PRIVATE
        ${ggml_dir}/src/ggufcluster-identity.cpp
        ${ggml_dir}/src/ggufcluster-process.cpp)
    set_source_files_properties(${ggml_dir}/src/ggufcluster-identity.cpp
        TARGET_DIRECTORY ggml-base
        PROPERTIES COMPILE_DEFINITIONS
        "GGUFCLUSTER_FINGERPRINT=\"${GGUFCLUSTER_FINGERPRINT}\";GGUFCLUSTER_BUILD_ID=\"${GGUFCLUSTER_BUILD_ID}\"")
    if (TARGET ggml-rpc)
        target_sources(ggml-rpc PRIVATE
            ${ggml_dir}/src/ggml-rpc/ggufcluster-handshake.cpp
            ${ggml_dir}/src/ggml-rpc/ggufcluster-socket.cpp)
    endif()
    if (TARGET llama-common-base)
        target_link_libraries(llama-common-base PRIVATE ggml-base)
    endif()
    ggufcluster_add_msa()
    ggufcluster_add_tool_calls()
endfunction()

# Sparse attention: the builders, the CPU backend in each of its variants, and llama's graph. CUDA sources are globbed.
function(ggufcluster_add_msa)
    target_sources(ggml-base PRIVATE ${PROJECT_SOURCE_DIR}/ggml/src/ggml-msa.c)
    get_property(ggml_targets DIRECTORY ${PROJECT_SOURCE_DIR}/ggml/src PROPERTY BUILDSYSTEM_TARGETS)
    foreach (target IN LISTS ggml_targets)
        if (target MATCHES "^ggml-cpu(-|$)" AND NOT target MATCHES "feats$")
            target_sources(${target} PRIVATE ${PROJECT_SOURCE_DIR}/ggml/src/ggml-cpu/msa.cpp)
        endif()
    endforeach()
    if (TARGET llama)
        target_sources(llama PRIVATE
            ${PROJECT_SOURCE_DIR}/src/ggufcluster-msa.cpp
            ${PROJECT_SOURCE_DIR}/src/ggufcluster-msa-positions.cpp)
        add_executable(ggufcluster-msa-agreement EXCLUDE_FROM_ALL
            ${PROJECT_SOURCE_DIR}/tests/ggufcluster-msa-agreement.cpp)
        target_link_libraries(ggufcluster-msa-agreement PRIVATE llama)
        target_compile_features(ggufcluster-msa-agreement PRIVATE cxx_std_17)
    endif()
endfunction()

# MiniMax-M3's answers: what binds the model, and how its tool calls are read.
function(ggufcluster_add_tool_calls)
    if (TARGET llama-common)
        target_sources(llama-common PRIVATE
            ${PROJECT_SOURCE_DIR}/common/ggufcluster-argument-type.cpp
            ${PROJECT_SOURCE_DIR}/common/ggufcluster-call-reader.cpp
            ${PROJECT_SOURCE_DIR}/common/ggufcluster-minimax-m3.cpp
            ${PROJECT_SOURCE_DIR}/common/ggufcluster-number.cpp)
        add_executable(ggufcluster-tool-calls EXCLUDE_FROM_ALL
            ${PROJECT_SOURCE_DIR}/tests/ggufcluster-tool-calls.cpp)
        target_link_libraries(ggufcluster-tool-calls PRIVATE llama-common llama)
        target_compile_features(ggufcluster-tool-calls PRIVATE cxx_std_17)
    endif()
    if (TARGET server-context)
        target_sources(server-context PRIVATE
            ${PROJECT_SOURCE_DIR}/tools/server/ggufcluster-anthropic.cpp
            ${PROJECT_SOURCE_DIR}/tools/server/ggufcluster-requests.cpp)
        add_executable(ggufcluster-dialects EXCLUDE_FROM_ALL
            ${PROJECT_SOURCE_DIR}/tests/ggufcluster-dialects.cpp)
        target_include_directories(ggufcluster-dialects PRIVATE ${PROJECT_SOURCE_DIR}/tools/server)
        target_link_libraries(ggufcluster-dialects PRIVATE server-context)
        target_compile_features(ggufcluster-dialects PRIVATE cxx_std_17)
    endif()
    if (TARGET llama-server-impl) # a shared library, which Python loads
        target_sources(llama-server-impl PRIVATE
            ${PROJECT_SOURCE_DIR}/tools/server/ggufcluster-chat.cpp)
    endif()
endfunction()
cmake_language(DEFER CALL ggufcluster_extend_targets)
