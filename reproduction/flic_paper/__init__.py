"""The paper, table by table and figure by figure, from cells that are kept once done."""
