# Fills @DATE@ and, on a line of its own, @SETTINGS@ (what the program named by `settings` prints); writes `out`.
/^@SETTINGS@$/ {
    while ((("'" settings "'") | getline line) > 0) print line >out
    next
}
{
    gsub(/@DATE@/, date)
    print >out
}
