"""The declared form: a class whose methods are the numbered steps of a graph.

``members`` reads the class and ties its methods to the one instance they run on; ``parameter_bindings`` decides where
each parameter gets its value from; ``graph`` puts the two together, once, when the class is defined; ``graph_run``
carries the graph out with ordinary asyncio, on a run's loop. What comes out is a workflow like any other.
"""
