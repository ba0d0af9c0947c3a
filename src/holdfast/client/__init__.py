"""Starting and following runs by name, without the code that executes them.

``Client`` is the public class. It works on a store, with the functions in ``services`` and ``reports``; its parts are
``run_operations``, ``admin_operations``, and ``resources``. ``http.client.HttpClient`` overrides every operation with a
request to a server. ``delivery`` and ``listener`` are for processes that take work from an address.
"""
