-- Identity: the file of this store, so that workers notice if they are started on a copy.

CREATE TABLE duly_store (
    -- The inode of the file that workers may use. NULL until the first worker has started.
    inode INTEGER
);

INSERT INTO duly_store VALUES (NULL);
