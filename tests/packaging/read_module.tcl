# read_module.tcl FILE: a module file's commands, printed as they come.
proc say {name arguments} { puts [concat $name [join $arguments " "]] }
foreach name {setenv prepend-path append-path conflict module-whatis} {
    proc $name {args} "say $name \$args"
}
set ModulesCurrentModulefile [lindex $argv 0]
source [lindex $argv 0]
# What `module help` prints.
rename puts printed
proc puts {channel text} { printed "help $text" }
ModulesHelp
