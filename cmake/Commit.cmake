# Run at every build: writes OUTPUT, a header with the commit that is checked out, where that changed.
execute_process(COMMAND git -C ${SOURCE} rev-parse --short=7 HEAD
  OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE status ERROR_QUIET)
if(NOT status EQUAL 0)
  set(commit "unknown")
else()
  execute_process(COMMAND git -C ${SOURCE} status --porcelain --untracked-files=no
    OUTPUT_VARIABLE changes ERROR_QUIET)
  if(changes)
    string(APPEND commit "+changes")
  endif()
endif()
set(text "#pragma once\nnamespace me {\ninline constexpr char kCommit[] = \"${commit}\";\n}\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
