"""Starting and following runs by name, without the code that executes them.

``Client`` is the public class. It works over a store (``store_backend``) or over a server (``http``), and uses the
operations in ``services`` and ``reports``. ``delivery`` and ``listener`` are for processes that take work from an
address.
"""
