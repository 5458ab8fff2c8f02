"""From files of records to windows that a step can train on. Nothing in here knows torch.

The rooms, in the order in which a record passes through them:

    sources     which files, where each line starts, what their content hashes to
    records     one JSON line -> one validated record of a task, or a precise complaint
    render      record -> text by the chat template -> token ids and loss weights
    examples    the policies around rendering: over-long, unstable, bad; everything counted
    shorten     an over-long record fits by losing source material only
    pack        lengths -> which examples share a window
    order       which record, and which window, comes at a position: a pure function of the seed
    chunks      windows on disk: Arrow IPC files beside one manifest
    window_set  a prepared set as a sequence, with its token counts
    packed_choice   prompts with target distributions over choices: format, checks, packer
    files       a file is written whole or not at all
    windows     `prepare` and `find`: the content-addressed set of windows of a phase

`windows.prepare` is what the rest of the program calls; `windows.find` answers a dry run without
reading file contents or loading a tokenizer.
"""
