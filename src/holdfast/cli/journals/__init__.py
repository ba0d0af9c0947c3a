"""Commands about journals and code: export and import runs, replay a journal, check workflow code."""
