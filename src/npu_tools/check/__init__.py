"""`tf-adapter check`: performs the checks of the migration guide on a script or model file and writes a report.

The command (`command`) identifies its subject (`subject`) and runs it twice in separate processes (`session`,
`processes`, `child`), in a copy of the user's folder (`scratch`), observed by hooks (`observe`, `recorder`). The
records are merged into one report (`assemble`), evaluated (`judge`, `rules`, `compare`) and rendered (`page`,
`charts`). Only the child processes import frameworks.
"""
