"""The APIs of other task systems on top of duly, for applications that change only imports."""
