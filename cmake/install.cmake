# What `cmake --install` lays down besides the command and the manual.
install(TARGETS kvferry DESTINATION ${CMAKE_INSTALL_LIBDIR})
install(FILES include/kvferry/kvferry.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/kvferry)
install(FILES ${examples} DESTINATION ${CMAKE_INSTALL_DOCDIR}/examples)
install(FILES LICENSE SECURITY.md DESTINATION ${CMAKE_INSTALL_DOCDIR})

# The prefix follows the file, so that a tree that was moved, or installed under DESTDIR, still works.
file(RELATIVE_PATH KVF_PC_TO_PREFIX ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
string(REGEX REPLACE "/$" "" KVF_PC_TO_PREFIX "${KVF_PC_TO_PREFIX}")
configure_file(packaging/kvferry.pc.in ${PROJECT_BINARY_DIR}/kvferry.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/kvferry.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
