"""The commands, with their options and help; what they do is in the modules beside this folder."""
