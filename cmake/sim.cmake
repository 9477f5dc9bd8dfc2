# The simulator: the pure parts, and of base/ what is pure or harmless, without UCX, sockets or threads.
file(GLOB sim_sources CONFIGURE_DEPENDS sim/*.c)
foreach(layer base wire plan room)
    file(GLOB sources CONFIGURE_DEPENDS src/${layer}/*.c)
    list(FILTER sources EXCLUDE REGEX "_test\\.c$")
    list(APPEND sim_sources ${sources})
endforeach()
add_executable(kvf_sim ${sim_sources})
target_include_directories(kvf_sim PRIVATE ${PROJECT_SOURCE_DIR})
target_link_libraries(kvf_sim PRIVATE kvf_options kvf_link_options PkgConfig::JANSSON PkgConfig::XXHASH)

# Ten seconds of seeds, then each planted bug. `make sim` and .ci/run take longer, and want no zero in the table.
if(KVF_TESTS)
    add_test(NAME sim/smoke COMMAND ${KVF_TEST_WRAPPER} $<TARGET_FILE:kvf_sim> --seconds 10)
    add_test(NAME sim/plants COMMAND ${KVF_TEST_WRAPPER} $<TARGET_FILE:kvf_sim> --plants)
    set_tests_properties(sim/smoke sim/plants PROPERTIES TIMEOUT ${kvf_test_timeout}
                         LABELS "core;sim" ENVIRONMENT "${kvf_test_environment}")
endif()
