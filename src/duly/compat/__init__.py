"""The APIs of other task systems over duly, for applications that change only their imports."""
