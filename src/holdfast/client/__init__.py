"""Starting and following runs by name, without the code that executes them.

``Client`` is the public class: it declares every operation. ``StoreClient`` implements it with the functions in
``services`` and ``reports``, ``http.client.HttpClient`` with requests to a server. ``run_operations`` and ``resources``
are its parts. ``delivery`` and ``listener`` are for processes that take work from an address.
"""
