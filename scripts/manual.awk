# Makes the manual of section 3 from the public header: kvferry.3, and a page for each group of functions that stand
# together there, with an alias for each further function of the group.
# Usage: awk -v out=FOLDER -v date="Month D, YYYY" -f manual.awk kvferry.h
#
# What it relies on in the header: comments start in the first column and precede what they describe; a group of
# functions ends at a blank line; lines indented by two or more spaces inside a comment are a table.

BEGIN { state = "text"; groups = 0; previous = "blank" }

# ---- reading ----

function strip_comment(line) {
    sub(/^\/\* ?/, "", line)
    sub(/ *\*\/ *$/, "", line)
    sub(/^ \* ?/, "", line)
    return line
}

function end_comment() {
    state = "text"
    if (comment ~ /^----/) {
        section = comment
        gsub(/^-+ *| *-+$/, "", section)
        section = tolower(section)
        comment = ""
    } else if (overview == "") {
        overview = comment
        comment = ""
    }
}

function add_function(text,    trailing, name) {
    trailing = ""
    if (match(text, /; *\/\*.*\*\//)) {
        trailing = strip_comment(substr(text, RSTART + 2))
        sub(/^ */, "", trailing)
        sub(/^\/\* */, "", trailing)
        text = substr(text, 1, RSTART)
    }
    gsub(/[ \t\n]+/, " ", text)
    sub(/^KVF_PUBLIC /, "", text)
    sub(/;.*$/, "", text)
    match(text, /kvf_[a-z_]+\(/)
    name = substr(text, RSTART, RLENGTH - 1)
    if (previous != "function") {
        groups++
        group_size[groups] = 0
        group_section[groups] = section
        group_comment[groups] = comment
        if (previous == "type" && comment == "")
            group_comment[groups] = type_comment[last_type]
    } else if (comment != "") {
        trailing = (trailing == "" ? comment : comment "\n" trailing)
    }
    comment = ""
    group[groups, ++group_size[groups]] = name
    is_function[name] = 1
    result[name] = substr(text, 1, RSTART - 1)
    arguments[name] = substr(text, RSTART + length(name) + 1)
    sub(/\) *$/, "", arguments[name])
    note[name] = trailing
    previous = "function"
}

{ sub(/[ \t\r]+$/, "") }

state == "comment" {
    comment = comment "\n" strip_comment($0)
    if ($0 ~ /\*\/$/) {
        sub(/\n$/, "", comment)
        end_comment()
    }
    next
}
state == "type" {
    body = body "\n" $0
    if ($0 ~ /^}/) {
        last_type = $0
        sub(/^} */, "", last_type)
        sub(/;.*$/, "", last_type)
        type_body[last_type] = body
        type_comment[last_type] = comment
        comment = ""
        state = "text"
        previous = "type"
    }
    next
}
state == "function" {
    body = body " " $0
    if ($0 ~ /;/) {
        state = "text"
        add_function(body)
    }
    next
}
/^\/\*/ {
    comment = strip_comment($0)
    if ($0 ~ /\*\/$/) end_comment(); else state = "comment"
    next
}
/^typedef (enum|struct) [a-z_]+ {/ {
    if ($0 ~ /};? *[a-z_]+;$/ || $0 ~ /} [a-z_]+;$/) {
        last_type = $0
        sub(/^.*} */, "", last_type)
        sub(/;.*$/, "", last_type)
        type_body[last_type] = $0
        type_comment[last_type] = comment
        comment = ""
        previous = "type"
        next
    }
    body = $0
    state = "type"
    next
}
/^typedef/ {
    last_type = $0
    sub(/;.*$/, "", last_type)
    sub(/^.* /, "", last_type)
    if ($0 ~ /\(\*/) {
        last_type = $0
        sub(/^.*\(\*/, "", last_type)
        sub(/\).*$/, "", last_type)
        type_body[last_type] = $0
    }
    type_comment[last_type] = comment
    comment = ""
    previous = "type"
    next
}
/^KVF_PUBLIC/ {
    body = $0
    if ($0 ~ /;/) add_function(body); else state = "function"
    next
}
/^$/ { previous = "blank"; next }
/^[#}e]/ { previous = "blank"; comment = ""; next }

# ---- writing ----

function escape(line) {
    gsub(/\\/, "\\e", line)
    if (line ~ /^[.']/) line = "\\&" line
    return line
}

# One line of at most 78 bytes a write; a function's name gets its markup.
function flush_line() {
    if (pending != "") printf "%s\n", escape(pending) >file
    pending = ""
}

function sentence(text,    words, count, i, name) {
    count = split(text, words, / +/)
    for (i = 1; i <= count; i++) {
        if (words[i] ~ /^[a-z_]+\(\)[.,;:]?$/) {
            flush_line()
            name = words[i]
            sub(/\(\).*$/, "", name)
            sub(/^.*\(\)/, "", words[i])
            printf ".Fn %s%s\n", name, (words[i] == "" ? "" : " " words[i]) >file
            continue
        }
        if (length(pending) + length(words[i]) > 76) flush_line()
        pending = (pending == "" ? words[i] : pending " " words[i])
    }
    flush_line()
}

function sentences(line) {
    pending = ""
    while (match(line, /[]A-Za-z0-9_)"][.:!?] +[A-Z]/)) {
        sentence(substr(line, 1, RSTART + 1))
        line = substr(line, RSTART + 2)
        sub(/^ +/, "", line)
    }
    sentence(line)
}

# Paragraphs and tables; `heads`: a line without indent that is followed by an indented one is a heading.
function write_comment(text, heads,    lines, count, i, mode, paragraph, first) {
    count = split(text, lines, "\n")
    mode = "none"
    first = 1
    paragraph = ""
    for (i = 1; i <= count + 1; i++) {
        if (i > count || lines[i] == "" || (lines[i] ~ /^  / && !(heads && mode == "prose")) ||
            (heads && lines[i] ~ /^[A-Z]/ && i < count && lines[i + 1] ~ /^  /)) {
            if (paragraph != "") {
                if (!first) print ".Pp" >file
                sentences(paragraph)
                paragraph = ""
                first = 0
            }
        }
        if (i > count) break
        if (lines[i] ~ /^  / && !(heads && mode == "prose")) {
            if (mode != "table") print ".Bd -literal" >file
            mode = "table"
            printf "%s\n", escape(lines[i]) >file
            first = 0
            continue
        }
        if (mode == "table") {
            print ".Ed" >file
            mode = "none"
            if (lines[i] != "" && !heads) first = 0
        }
        if (lines[i] == "") {
            if (mode == "prose") mode = "none"
            continue
        }
        if (heads && lines[i] ~ /^[A-Z]/ && i < count && lines[i + 1] ~ /^  /) {
            printf ".Ss %s\n", escape(lines[i]) >file
            first = 1
            mode = (lines[i] ~ /words/ ? "none" : "prose")
            continue
        }
        sub(/^ +/, "", lines[i])
        paragraph = (paragraph == "" ? lines[i] : paragraph " " lines[i])
    }
    if (mode == "table") print ".Ed" >file
}

function heading(title, what) {
    printf ".\\\" Made from kvferry.h by scripts/manual.awk; don't edit.\n" >file
    printf ".Dd %s\n.Dt %s 3\n.Os\n.Sh NAME\n", date, toupper(title) >file
    printf "%s", what >file
}

function write_function(name,    list, count, i, argument) {
    argument = result[name]
    sub(/ +$/, "", argument)
    printf ".Ft %s\n.Fo %s\n", argument, name >file
    count = split(arguments[name], list, /, */)
    for (i = 1; i <= count; i++)
        printf ".Fa \"%s\"\n", list[i] >file
    print ".Fc" >file
}

function write_type(name) {
    print ".Bd -literal" >file
    printf "%s\n", escape(type_body[name]) >file
    print ".Ed" >file
}

function write_group(g,    i, name, counterpart, used, type, any) {
    file = out "/" group[g, 1] ".3"
    heading(group[g, 1], "")
    for (i = 1; i <= group_size[g]; i++)
        printf ".Nm %s%s\n", group[g, i], (i < group_size[g] ? " ," : "") >file
    printf ".Nd kvferry: %s\n", group_section[g] >file
    print ".Sh SYNOPSIS\n.In kvferry/kvferry.h" >file
    for (i = 1; i <= group_size[g]; i++) write_function(group[g, i])
    print ".Sh DESCRIPTION" >file
    any = 0
    if (group_comment[g] != "") {
        write_comment(group_comment[g], 0)
        any = 1
    }
    for (i = 1; i <= group_size[g]; i++) {
        name = group[g, i]
        counterpart = name
        sub(/^kvf_receiver_/, "kvf_sender_", counterpart)
        if (note[name] != "") {
            if (any) print ".Pp" >file
            printf ".Fn %s :\n", name >file
            sentences(note[name])
            any = 1
        } else if (counterpart != name && (counterpart in is_function) && (group_comment[g] == "")) {
            if (any) print ".Pp" >file
            printf ".Fn %s\nis the receiver's counterpart of\n.Fn %s .\n", name, counterpart >file
            any = 1
        }
    }
    if (!any) printf "See\n.Xr kvferry 3 .\n" >file
    used = ""
    for (i = 1; i <= group_size[g]; i++)
        used = used " " result[group[g, i]] " " arguments[group[g, i]] " "
    any = 0
    for (type in type_body) {
        # In a fixed order, whatever awk's is.
        order[++any] = type
    }
    sort_names(any)
    first_type = 1
    for (i = 1; i <= any; i++) {
        type = order[i]
        if (type == "kvf_status" || used !~ ("[^a-z_]" type "[^a-z_]")) continue
        if (first_type) print ".Sh TYPES" >file
        if (type_comment[type] != "" && type_comment[type] != group_comment[g]) {
            if (!first_type) print ".Pp" >file
            write_comment(type_comment[type], 0)
        }
        first_type = 0
        write_type(type)
    }
    print ".Sh SEE ALSO\n.Xr kvferry 3" >file
    close(file)
    for (i = 2; i <= group_size[g]; i++)
        system("ln -sf '" group[g, 1] ".3' '" out "/" group[g, i] ".3'")
}

function sort_names(count,    i, j, name) {
    for (i = 2; i <= count; i++) {
        name = order[i]
        for (j = i - 1; j >= 1 && order[j] > name; j--) order[j + 1] = order[j]
        order[j + 1] = name
    }
}

END {
    for (g = 1; g <= groups; g++) write_group(g)
    file = out "/kvferry.3"
    heading("kvferry", ".Nm kvferry\n.Nd moves paged KV caches from prefill workers to decode workers\n")
    print ".Sh SYNOPSIS\n.In kvferry/kvferry.h" >file
    print ".Pp\n.Dl cc program.c $(pkg-config --cflags --libs kvferry)" >file
    print ".Sh DESCRIPTION" >file
    write_comment(overview, 1)
    print ".Ss The functions" >file
    print ".Bl -item -compact" >file
    for (g = 1; g <= groups; g++)
        for (i = 1; i <= group_size[g]; i++) printf ".It\n.Xr %s 3\n", group[g, i] >file
    print ".El" >file
    print ".Ss Status" >file
    write_comment(type_comment["kvf_status"], 0)
    write_type("kvf_status")
    print ".Sh EXAMPLES" >file
    print ".Pa examples/hello.c ,\ninstalled with the documentation, shows the whole interface in use." >file
    print ".Sh SEE ALSO\n.Xr kvferry 1" >file
    close(file)
}
