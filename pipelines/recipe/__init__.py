"""Recipes: loaded from their file, and shipped to workers.

In: a recipe or its file. Out: the recipe's objects in a process of any machine.
"""
