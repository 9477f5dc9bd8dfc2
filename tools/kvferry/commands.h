/* The commands main() knows. Each takes the arguments after its name and returns the exit status. */
#ifndef KVFERRY_TOOL_COMMANDS_H
#define KVFERRY_TOOL_COMMANDS_H

int command_demo(int count, char **arguments);
int command_bootstrap(int count, char **arguments);
int command_prefill(int count, char **arguments);
int command_decode(int count, char **arguments);
int command_doctor(int count, char **arguments);
int command_torture(int count, char **arguments);
int command_torture_decode(int count, char **arguments);
int command_settings(int count, char **arguments);

#endif
