"""Skills: instructions, tools, and files that a model loads when it needs them.

An agent's instructions always contain the names and descriptions of its skills. The rest is loaded on demand: the tool
``load_skill`` returns a skill's own instructions and shows the model the skill's tools, and ``read_skill_file`` returns
one of its files. These calls are recorded like any other, so a skill may change while runs are executing.

``skill`` defines skills, ``skill_folders`` reads them from folders, and ``skill_tools`` has the tools for the model.
"""
