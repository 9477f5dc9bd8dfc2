# The manual: section 3 from the header's comments, section 1 from docs/man/kvferry.1.in with the settings table.
set(KVF_MANUAL_DATE "November 30, 2026")
set(manual ${PROJECT_BINARY_DIR}/man)
find_program(AWK NAMES awk REQUIRED)

add_custom_command(
    OUTPUT ${manual}/man3/kvferry.3
    COMMAND ${CMAKE_COMMAND} -E rm -rf ${manual}/man3
    COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}/man3
    COMMAND ${AWK} -v out=${manual}/man3 -v date=${KVF_MANUAL_DATE}
            -f ${PROJECT_SOURCE_DIR}/scripts/manual.awk ${PROJECT_SOURCE_DIR}/include/kvferry/kvferry.h
    DEPENDS scripts/manual.awk include/kvferry/kvferry.h
    COMMENT "Manual pages of section 3"
    VERBATIM)

add_executable(kvf_manual_settings docs/man/settings.c)
target_link_libraries(kvf_manual_settings PRIVATE kvf_outside kvferry)
add_custom_command(
    OUTPUT ${manual}/man1/kvferry.1
    COMMAND ${CMAKE_COMMAND} -E make_directory ${manual}/man1
    COMMAND ${AWK} -v date=${KVF_MANUAL_DATE} -v settings=$<TARGET_FILE:kvf_manual_settings>
            -v out=${manual}/man1/kvferry.1 -f ${PROJECT_SOURCE_DIR}/docs/man/fill.awk
            ${PROJECT_SOURCE_DIR}/docs/man/kvferry.1.in
    DEPENDS kvf_manual_settings docs/man/fill.awk docs/man/kvferry.1.in
    COMMENT "Manual page of section 1"
    VERBATIM)

add_custom_target(manual ALL DEPENDS ${manual}/man1/kvferry.1 ${manual}/man3/kvferry.3)
install(DIRECTORY ${manual}/man1 ${manual}/man3 DESTINATION ${CMAKE_INSTALL_MANDIR})
