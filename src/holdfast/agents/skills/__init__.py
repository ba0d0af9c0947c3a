"""Skills: instructions, tools and files that a model takes up when it needs them.

The names and descriptions of an agent's skills are in its instructions, always. The rest comes on demand: the tool
``load_skill`` gives a skill's own instructions, ``read_skill_file`` one of its files, and from then on the model is
shown the skill's tools. All that is recorded like any other call, so a skill may change while runs are under way.

``skill`` is what a skill is, ``skill_folders`` reads those that are kept in folders, ``skill_tools`` has the tools.
"""
