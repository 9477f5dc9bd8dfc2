# How everything is compiled. kvf_options: our own code. kvf_link_options: what is linked from it.
# kvf_outside: the command and the examples, which see the public header only.
set(kvf_warnings -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes
    -Wno-format-truncation)
if(CMAKE_C_COMPILER_ID MATCHES Clang)
    list(APPEND kvf_warnings -Wno-unknown-warning-option)
endif()
if(KVF_WERROR)
    list(APPEND kvf_warnings -Werror)
endif()

if(KVF_FUZZ)
    set(KVF_SANITIZE "address,undefined")
endif()
if(KVF_SANITIZE)
    add_compile_options(-fsanitize=${KVF_SANITIZE} -fno-omit-frame-pointer)
    add_link_options(-fsanitize=${KVF_SANITIZE})
    if(KVF_SANITIZE MATCHES undefined)
        add_compile_options(-fno-sanitize-recover=undefined)
    endif()
    if(KVF_FUZZ)
        add_compile_options(-fsanitize=fuzzer-no-link)
    endif()
else()
    # Hardening; _FORTIFY_SOURCE needs an optimized build, and the sanitizers do better.
    add_compile_options(-fstack-protector-strong
                        "$<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE;-D_FORTIFY_SOURCE=2>")
endif()

add_library(kvf_link_options INTERFACE)
target_link_options(kvf_link_options INTERFACE -Wl,-z,relro,-z,now)
if(NOT KVF_SANITIZE)
    # clang leaves the sanitizers' symbols to the program that loads the library.
    target_link_options(kvf_link_options INTERFACE -Wl,--no-undefined)
endif()

add_library(kvf_options INTERFACE)
target_compile_options(kvf_options INTERFACE ${kvf_warnings})
target_compile_definitions(kvf_options INTERFACE _GNU_SOURCE KVF_VERSION="${PROJECT_VERSION}")
target_include_directories(kvf_options INTERFACE ${PROJECT_SOURCE_DIR}/include ${PROJECT_SOURCE_DIR}/src)

add_library(kvf_outside INTERFACE)
target_compile_options(kvf_outside INTERFACE ${kvf_warnings})
target_compile_definitions(kvf_outside INTERFACE _GNU_SOURCE KVF_VERSION="${PROJECT_VERSION}")
