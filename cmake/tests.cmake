# Each *_test.c under src/ and test/ is one CTest test by itself; each test/*_test.sh too, called with
# SOURCE_ROOT BUILD_ROOT. Exit status 77 means skipped. Labels: the layer, and
#   core      everything that any UCX from 1.13.1 on must pass
#   interop   (interop_*_test.*) needs stock peers or a newer UCX
#   e2e       real faults on real processes (test/e2e)
#   slow      (*_slow_test.*, soak_*, most of e2e) left out by .ci/run's sanitizer jobs
#   soak      (soak_*) a hundred thousand rooms
enable_testing()

# clang doesn't see that the tests' die() ends the process. As a source's option it comes after -Wall.
file(GLOB test_sources CONFIGURE_DEPENDS src/*/*_test.c test/*.c test/e2e/*.c test/support/*.c)
set_source_files_properties(${test_sources} PROPERTIES COMPILE_OPTIONS
                            "$<$<C_COMPILER_ID:Clang>:-Wno-sometimes-uninitialized>")
pkg_check_modules(CMOCKA REQUIRED IMPORTED_TARGET cmocka)

set(suppressions ${PROJECT_SOURCE_DIR}/test/suppressions)
# 99: what a sanitizer finds can't be taken for a command's own exit status.
set(kvf_test_environment
    "ASAN_OPTIONS=exitcode=99:detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1"
    "LSAN_OPTIONS=exitcode=99:suppressions=${suppressions}/lsan.supp:print_suppressions=0"
    "UBSAN_OPTIONS=exitcode=99:print_stacktrace=1:halt_on_error=1"
    "TSAN_OPTIONS=exitcode=99:suppressions=${suppressions}/tsan.supp:halt_on_error=1:second_deadlock_stack=1")
set(kvf_test_timeout 120)
if(KVF_SANITIZE OR KVF_TEST_WRAPPER)
    set(kvf_test_timeout 600)
endif()

function(kvf_describe_test test layer file)
    if(file MATCHES "^interop_")
        set(labels interop ${layer})
    else()
        set(labels core ${layer})
    endif()
    if(file MATCHES "_slow_test|^soak_")
        list(APPEND labels slow)
    endif()
    if(file MATCHES "^soak_")
        list(APPEND labels soak)
    endif()
    set_tests_properties(${test} PROPERTIES TIMEOUT ${kvf_test_timeout} SKIP_RETURN_CODE 77
                         LABELS "${labels}" ENVIRONMENT "${kvf_test_environment}")
endfunction()

# What several tests share: random inputs, the captured scenes.
file(GLOB support CONFIGURE_DEPENDS test/support/*.c)
add_library(kvf_test_support STATIC ${support})
target_include_directories(kvf_test_support PUBLIC ${PROJECT_SOURCE_DIR}/test)
target_link_libraries(kvf_test_support PUBLIC kvf_inside PkgConfig::CMOCKA)
target_compile_definitions(kvf_test_support PRIVATE
                           KVF_TEST_VECTORS="${PROJECT_SOURCE_DIR}/test/vectors")

file(GLOB tests CONFIGURE_DEPENDS src/*/*_test.c test/*_test.c test/e2e/*_test.c)
foreach(test ${tests})
    get_filename_component(name ${test} NAME_WE)
    get_filename_component(directory ${test} DIRECTORY)
    get_filename_component(layer ${directory} NAME)
    add_executable(${layer}_${name} ${test})
    target_link_libraries(${layer}_${name} PRIVATE kvf_test_support)
    target_compile_definitions(${layer}_${name} PRIVATE
                               KVF_TEST_VECTORS="${PROJECT_SOURCE_DIR}/test/vectors"
                               KVF_BUILD_ROOT="${PROJECT_BINARY_DIR}")
    add_test(NAME ${layer}/${name} COMMAND ${KVF_TEST_WRAPPER} $<TARGET_FILE:${layer}_${name}>)
    kvf_describe_test(${layer}/${name} ${layer} ${name})
endforeach()

# Its own allocations stand in for those that kvferry's code makes.
target_link_options(test_no_memory_test PRIVATE LINKER:--wrap=malloc,--wrap=calloc,--wrap=realloc,--wrap=free)

# Figures for the record, run by hand: no tests, but they must build.
file(GLOB benches CONFIGURE_DEPENDS test/bench_*.c)
foreach(bench ${benches})
    get_filename_component(name ${bench} NAME_WE)
    add_executable(${name} ${bench})
    target_link_libraries(${name} PRIVATE kvf_test_support)
endforeach()

# What stock NIXL agents meet in test/interop.
add_executable(bare_agent test/interop/bare_agent.c)
target_link_libraries(bare_agent PRIVATE kvf_inside)

# Real faults on real processes: the command's own. All cases with an uninstrumented build; six of them with any UCX
# and under AddressSanitizer.
find_package(Python3 COMPONENTS Interpreter)
function(kvf_add_e2e test labels)
    add_test(NAME e2e/${test} COMMAND ${ARGN})
    set_tests_properties(e2e/${test} PROPERTIES TIMEOUT 900 SKIP_RETURN_CODE 77 LABELS "e2e;${labels}"
                         ENVIRONMENT "${kvf_test_environment};PYTHONDONTWRITEBYTECODE=1")
endfunction()
if(Python3_FOUND AND tool_sources AND NOT KVF_TEST_WRAPPER AND NOT KVF_SANITIZE MATCHES "thread")
    set(faults ${Python3_EXECUTABLE} ${PROJECT_SOURCE_DIR}/test/e2e/run.py ${PROJECT_BINARY_DIR})
    if(NOT KVF_SANITIZE)
        kvf_add_e2e(faults_shm slow ${faults} shm)
        kvf_add_e2e(faults_tcp slow ${faults} tcp)
        kvf_add_e2e(torture slow ${PROJECT_SOURCE_DIR}/test/e2e/torture.sh ${PROJECT_BINARY_DIR})
    endif()
    kvf_add_e2e(six "core;six" ${faults} shm --six)
    kvf_add_e2e(six_tcp "core;six" ${faults} tcp --six)
endif()

# Scripts look at built files, which a sanitizer changes, so they run on plain builds only.
if(NOT KVF_SANITIZE)
    file(GLOB scripts CONFIGURE_DEPENDS test/*_test.sh)
    foreach(script ${scripts})
        get_filename_component(name ${script} NAME_WE)
        add_test(NAME test/${name} COMMAND ${script} ${PROJECT_SOURCE_DIR} ${PROJECT_BINARY_DIR})
        kvf_describe_test(test/${name} test ${name})
    endforeach()
endif()
