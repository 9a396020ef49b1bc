"""`tf-adapter check`: works through the migration guide for a script or a model file, and writes a report.

The command (`command`) recognises what is checked (`subject`) and runs it twice in processes of their own (`session`,
`processes`, `child`), in a copy of the user's folder (`scratch`), watched by hooks (`observe`, `recorder`). The records
become one report (`assemble`), which is judged (`judge`, `rules`, `compare`) and drawn (`page`, `charts`). No framework
is imported outside the processes.
"""
